"""A server that runs: what its HTTP addresses say, a scrape of its metrics, and the log of its start."""

import ast
import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from scenarios.servers.config_file import as_words, plain
from scenarios.servers.start import VLLM, Start, launch_of_image
from simulator.errors import InputError

ACCEPTANCE = "engine.speculative_config.acceptance"
_SECONDS = 10


def read_server(url: str) -> Start:
    """Return what a running vLLM, SGLang or TensorRT-LLM says of itself. Raises InputError where none answers."""
    base = url.removesuffix("/").removesuffix("/metrics").removesuffix("/v1")
    metrics = _get(f"{base}/metrics")
    args = _get(f"{base}/get_server_info")
    models = _get(f"{base}/v1/models")
    if not any((metrics, args, models)):
        raise InputError(f"no server answers at {base}", file=url, hint="its /metrics or /v1/models must be reachable")
    if args and "model_path" in (info := json.loads(args)):
        return _of_sglang(info, base)
    start = read_metrics(metrics or "", f"{base}/metrics")
    said = dict(start.said)
    version = _get(f"{base}/version")
    if version and (match := re.search(r"(\d+\.\d+)", version)):
        said["engine.version"] = (match[1], f"{base}/version")
    served = json.loads(models).get("data") or [] if models else []
    if served:
        name = served[0].get("root") or served[0].get("id")
        return Start(base, (*VLLM.split(), str(name)), said=said, notes=start.notes)
    return Start(base, start.words, said=said, notes=start.notes)


def read_metrics(text: str, place: str) -> Start:
    """Return what a scrape of `/metrics` says: blocks and their size, share of memory, model, accepted drafts."""
    said: dict[str, tuple[object, str]] = {}
    info = re.search(r"^vllm:cache_config_info\{(.*)\}", text, re.MULTILINE)
    labels = dict(re.findall(r'(\w+)="([^"]*)"', info[1])) if info else {}
    for label, key in (("num_gpu_blocks", "hardware.num_gpu_blocks"), ("block_size", "engine.block_size"),
                       ("gpu_memory_utilization", "hardware.gpu_memory_utilization"),
                       ("enable_prefix_caching", "engine.enable_prefix_caching")):  # fmt: skip
        if labels.get(label, "None") != "None":
            said[key] = (ast.literal_eval(labels[label]), f"cache_config_info in {place}")
    if labels.get("cache_dtype", "").startswith("fp8"):
        said["model.kv_dtype_bytes"] = (1, f"cache_config_info in {place}")
    if rates := accepted_rates(text):
        said[ACCEPTANCE] = ({"rates": rates}, f"the accepted drafts in {place}")
    name = re.search(r'model_name="([^"]+)"', text)
    if not info and not name:
        return Start(place)
    words = (*VLLM.split(), *([name[1]] if name else []))
    untold = (
        "max_num_seqs, max_num_batched_tokens and tensor_parallel are not in the metrics: give its start-up log too"
    )
    return Start(place, words, said=said, notes=[untold])


def accepted_rates(text: str) -> list[float]:
    """Return the share of verify steps that accepted at least 1, 2, ... drafts, by vLLM's counters; of all engines.

    Empty where nothing was drafted yet.
    """
    counted: dict[str, float] = {}
    for name, labels, value in re.findall(r"^vllm:spec_decode_(\w+?)(?:_total)?\{(.*)\} (\S+)$", text, re.MULTILINE):
        place = re.search(r'position="(\d+)"', labels)
        key = f"{name} {place[1]}" if place else name
        counted[key] = counted.get(key, 0.0) + float(value)
    steps = counted.get("num_drafts", 0.0)
    if not steps:
        return []
    places = sorted(int(key.split()[1]) for key in counted if key.startswith("num_accepted_tokens_per_pos "))
    return [round(counted[f"num_accepted_tokens_per_pos {place}"] / steps, 4) for place in places]


def read_log(text: str, place: str) -> Start | None:
    """Return what the log of a start says: arguments, version, blocks, the engine's settings. None where it is none."""
    sglang = re.search(r"server_args=ServerArgs\((.*)\)", text)
    if sglang:
        return _of_sglang(_arguments(sglang[1]), place)
    given = re.search(r"non-default args: (\{.*\})", text)
    config = re.search(r"LLM engine \(v(\d+\.\d+)[^)]*\) with config: (.*)", text)
    if not given and not config:
        return None
    said: dict[str, tuple[object, str]] = {}
    words = [*VLLM.split()]
    if given:
        arguments = ast.literal_eval(given[1])
        name = arguments.pop("model", None) or arguments.pop("model_tag", None)
        words += [*([str(name)] if name else []), *as_words({k: v for k, v in arguments.items() if k != "model_tag"})]
    if config:
        said["engine.version"] = (config[1], f"{place}: the engine's line")
        settings = _arguments(config[2])
        if len(words) == 2 and "model" in settings:
            words.append(str(settings["model"]))
        for name, key in (("tensor_parallel_size", "hardware.tensor_parallel"),
                          ("pipeline_parallel_size", "hardware.pipeline_parallel"),
                          ("enable_prefix_caching", "engine.enable_prefix_caching")):  # fmt: skip
            if name in settings:
                said[key] = (settings[name], f"{place}: the engine's line")
    for key, pattern in (("engine.max_num_batched_tokens", r"max_num_batched_tokens=(\d+)"),
                         ("hardware.num_gpu_blocks", r"# GPU blocks: ([\d,]+)")):  # fmt: skip
        if match := re.search(pattern, text):
            said[key] = (int(match[1].replace(",", "")), f"{place}: its line on {key.rpartition('.')[2]}")
    if match := re.search(r"GPU KV cache size: ([\d,]+) tokens", text):
        said["kv_tokens"] = (int(match[1].replace(",", "")), f"{place}: GPU KV cache size")
    return Start(place, words, said=said, gpu=" ".join(re.findall(r"(?:NVIDIA|GPU:?) [^\n]*", text)[:5]))


def _of_sglang(info: Mapping[str, Any], place: str) -> Start:
    launch = launch_of_image("lmsysorg/sglang")
    assert launch is not None
    names = [plain(name).replace("-", "_") for flag in launch.flags for name in flag.names.split()]
    given = {key: info[key] for key in ("model_path", *names) if info.get(key) not in (None, False)}
    said: dict[str, tuple[object, str]] = {}
    if isinstance(tokens := info.get("max_total_num_tokens"), int):
        said["kv_tokens"] = (tokens, f"{place}: max_total_num_tokens")
    return Start(place, (*launch.programs[0].split(), *as_words(given)), said=said)


def _arguments(text: str) -> dict[str, Any]:
    """Read `name=value, ...` as Python writes it; values that are no plain ones are left out."""
    found = {}
    for name, value in re.findall(r"(\w+)=('[^']*'|\"[^\"]*\"|[\w.+-]+)(?=[,)\s]|$)", text):
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


def _get(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            return str(answer.read(2**24).decode("utf-8", "replace"))
    except (urllib.error.URLError, OSError, ValueError):
        return None
