"""Sources of each kind: command lines, files of flags, compose, Kubernetes, logs, scrapes, running servers."""

import json
import re
import shlex
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from scenarios.from_server import Found, make
from scenarios.plan.answer import deploy
from scenarios.servers.flags import unfolded
from scenarios.servers.sources import choose, read_source
from simulator.errors import InputError
from tests.command import batchlab

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
LOG = f"""INFO 02-20 00:00:50 [utils.py:233] non-default args: {{'model_tag': '{LLAMA}', 'host': '::', \
'max_num_seqs': 300, 'tensor_parallel_size': 2, 'enable_prefix_caching': False}}
INFO 02-20 00:00:52 [core.py:109] Initializing a V1 LLM engine (v0.20.1) with config: model='{LLAMA}', \
speculative_config=None, tensor_parallel_size=2, enable_prefix_caching=False, kv_cache_dtype=auto
INFO 02-20 00:00:53 [scheduler.py:1] Chunked prefill is enabled with max_num_batched_tokens=8192.
INFO 02-20 00:01:02 [kv_cache_utils.py:1733] GPU KV cache size: 620,944 tokens
"""
METRICS = f"""# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",gpu_memory_utilization="0.85",\
num_gpu_blocks="27895",num_gpu_blocks_override="None"}} 1.0
vllm:num_requests_running{{engine="0",model_name="{LLAMA}"}} 3.0
"""


def made(*sources: str, **given: Any) -> Found:
    return make([choose(read_source(each), None)[0] for each in sources], **given)


def key(found: Found, path: str) -> Any:
    value: Any = found.scenario.resolved()
    for part in path.split("."):
        value = value[part]
    return value


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [
        ("vllm serve {m} --max-num-seqs=8k", "engine.max_num_seqs", 8000),
        ("vllm serve {m} --max_num_batched_tokens 8K", "engine.max_num_batched_tokens", 8192),
        ("vllm serve --model {m} -tp 2", "hardware.tensor_parallel", 2),
        ("vllm serve --enforce-eager --enable-expert-parallel {m}", "hardware.enable_expert_parallel", True),
        ("vllm serve {m} --no-enable-prefix-caching", "engine.enable_prefix_caching", False),
        ("vllm serve {m} --enable-chunked-prefill=False", "engine.enable_chunked_prefill", False),
        ("vllm serve {m} --enable-chunked-prefill False --port 1", "engine.enable_chunked_prefill", False),
        ("vllm serve {m} --data-parallel-size 4", "replicas", 4),
        ("vllm serve {m} --no-async-scheduling", "engine.async_scheduling", False),
        ("vllm serve {m} --kv-cache-dtype fp8 --quantization fp8", "model",
         {"base": "llama-3.1-8b", "kv_dtype_bytes": 1, "dtype_bytes": 1}),
        ("bash -c 'exec vllm serve {m} --max-num-seqs 9'", "engine.max_num_seqs", 9),
        ("SEQS=7 /usr/bin/python3 -m vllm.entrypoints.openai.api_server --model {m} --max-num-seqs $SEQS",
         "engine.max_num_seqs", 7),
        ("docker run --gpus all -v a:/b vllm/vllm-openai:v0.15.1 --model {m}", "engine.version", "0.15"),
        ("docker run vllm/vllm-openai:v0.6.3 --model {m} --swap-space 8 --preemption-mode swap",
         "hardware.swap_space_gib", 8),
        ("VLLM_USE_V1=0 vllm serve {m}", "engine.policy", "vllm_v0"),
        ("vllm serve openai/gpt-oss-20b --prefix-cache-retention-interval None",
         "engine.prefix_cache_retention_interval", "all"),
        ("vllm serve openai/gpt-oss-20b --disable-hybrid-kv-cache-manager",
         "engine.disable_hybrid_kv_cache_manager", True),
        ("VLLM_MXFP4_USE_MARLIN=1 vllm serve openai/gpt-oss-20b", "cost.moe_backend", "marlin"),
        ("vllm serve openai/gpt-oss-20b --moe-backend triton", "cost.moe_backend", "triton"),
        ("VLLM_MXFP4_USE_MARLIN=1 vllm serve {m}", "cost.kind", "profile"),
        ("vllm serve openai/gpt-oss-20b -tp 2 --compilation_config.pass_config.fuse_allreduce_rms true",
         "cost.fuse_allreduce_rms", True),
        ("vllm serve openai/gpt-oss-20b -tp 2 -cc.pass_config.fuse_allreduce_rms=False",
         "cost.fuse_allreduce_rms", False),
        ("sglang serve --model-path {m} --tp 4 --chunked-prefill-size -1", "engine.chunked_prefill_size", -1),
        ("sglang serve --model-path {m} --speculative-algorithm EAGLE3", "engine.max_num_seqs", 48),
        ("sglang serve --model-path {m} --speculative-algorithm NGRAM --max-running-requests 9",
         "engine.max_num_seqs", 9),
        ("sglang serve --model-path {m}", "engine.max_num_seqs", 2048),
        ("sglang serve --model-path {m} --tp 4 --dp 2", "hardware.tensor_parallel", 4),
        ("sglang serve --model-path {m} --dp 1 --enable-dp-attention", "engine.schedule_conservativeness", 1.0),
        ("trtllm-serve serve {m} --max_batch_size 5", "engine.max_num_seqs", 5),
        ("python3 -m dynamo.vllm --model {m} --max-num-seqs 6", "engine.max_num_seqs", 6),
    ],
)  # fmt: skip
def test_a_command_line_is_read_as_its_server_reads_it(line: str, path: str, value: Any) -> None:
    found = made(line.format(m=LLAMA))
    assert key(found, path) == value
    assert found.read.unknown == {}


@pytest.mark.parametrize(
    ("flags", "config"),
    [
        ("EAGLE3 --speculative-draft-model-path a/head", ("eagle3", 5, 4, 8)),  # SGLang's choice for Llama
        ("eagle3 --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 9",
         ("eagle3", 3, 1, None)),
        ("EAGLE --speculative-num-steps 2 --speculative-eagle-topk 4 --speculative-num-draft-tokens 6",
         ("eagle", 2, 4, 6)),
        ("NGRAM", ("ngram", 11, 1, None)),
        ("STANDALONE --speculative-draft-model-path Qwen/Qwen3-0.6B", ("draft_model", 3, 1, None)),
    ],
)  # fmt: skip
def test_drafts_of_sglang_are_those_that_it_chooses(flags: str, config: tuple[object, ...]) -> None:
    found = made(
        f"sglang serve --model-path {LLAMA} --speculative-algorithm {flags}"
    ).scenario.engine.speculative_config
    assert found is not None
    assert (found.method, found.num_speculative_tokens, found.eagle_topk, found.num_draft_tokens) == config
    assert found.draft_model == ("qwen3-0.6b" if found.method == "draft_model" else None)


DEEPSEEK = "sglang serve --model-path deepseek-ai/DeepSeek-V3"


@pytest.mark.parametrize(
    ("flags", "tensor", "ranks", "seqs", "chunk", "conservativeness"),
    [
        ("--tp 8 --dp 8 --enable-dp-attention --max-running-requests 1024", 1, 8, 128, 1024, 0.3),
        ("--tp 8 --dp 2 --enable-dp-attention --ep-size 8 --chunked-prefill-size 16384", 4, 2, 2048, 8192, 0.3),
        ("--tp 8 --dp 4 --enable-dp-attention --schedule-conservativeness 2", 2, 4, 2048, 2048, 0.6),
        ("--tp 8 --ep-size 8", 8, 1, 2048, 8192, 1.0),
    ],
)
def test_flags_of_all_ranks_of_sglang_are_keys_of_one(
    flags: str, tensor: int, ranks: int, seqs: int, chunk: int, conservativeness: float
) -> None:
    found = made(f"{DEEPSEEK} {flags}", gpu="h200")
    engine = [key(found, f"engine.{name}") for name in ("max_num_seqs", "chunked_prefill_size")]
    assert (key(found, "hardware.tensor_parallel"), found.scenario.replicas, *engine) == (tensor, ranks, seqs, chunk)
    assert key(found, "engine.schedule_conservativeness") == conservativeness
    assert key(found, "hardware.enable_expert_parallel") is True
    again = made(deploy(found.scenario, ranks), gpu="h200")
    for part in ("engine", "hardware", "replicas"):
        assert key(again, part) == key(found, part)


def test_attention_ranks_of_tensorrt_llm_are_its_gpus(tmp_path: Path) -> None:
    options = tmp_path / "options.yaml"
    options.write_text("enable_attention_dp: true\nmoe_expert_parallel_size: 8\n")
    told = "trtllm-serve deepseek-ai/DeepSeek-V3 --tp_size 8 --max_batch_size 64"
    ranks = made(f"{told} --extra_llm_api_options {options}", gpu="b200")
    shared = made(f"{told} --ep_size 8", gpu="b200")
    paths = ("hardware.tensor_parallel", "replicas", "engine.max_num_seqs", "hardware.enable_expert_parallel")
    assert [key(ranks, path) for path in paths] == [1, 8, 64, True]
    assert [key(shared, path) for path in paths] == [8, 1, 64, True]
    again = made(deploy(shared.scenario), gpu="b200")
    assert key(again, "hardware") == key(shared, "hardware")


def test_ranks_of_sglang_divide_its_gpus_and_take_memory() -> None:
    with pytest.raises(InputError, match="3 ranks do not divide 8 GPUs"):
        made(f"{DEEPSEEK} --tp 8 --dp 3 --enable-dp-attention", gpu="h200")
    alone, ranks = (key(made(f"{DEEPSEEK} --tp 8 {each}", gpu="h200"), "hardware.mem_fraction_static")
                    for each in ("", "--dp 8 --enable-dp-attention"))  # fmt: skip
    assert alone - ranks == pytest.approx(512 * 8 * 4.5 / (141 * 1024), abs=0.06)


def test_a_drafter_that_is_not_modelled_is_named() -> None:
    found = made(f"sglang serve --model-path {LLAMA} --speculative-algorithm DFLASH")
    assert found.scenario.engine.speculative_config is None
    assert "--speculative-algorithm DFLASH" in found.read.not_modelled


def test_what_flags_do_not_say_is_what_the_server_does_on_that_gpu() -> None:
    for gpu, seqs, tokens in (("h100", 1024, 8192), ("a100-80gb", 256, 2048), ("b200", 1024, 16384), ("l4", 256, 2048)):
        found = made(f"vllm serve {LLAMA}", gpu=gpu)
        assert (key(found, "engine.max_num_seqs"), key(found, "engine.max_num_batched_tokens")) == (seqs, tokens)
        assert found.why["engine.max_num_seqs"] == "the server's default" or seqs == 256
    assert key(made(f"vllm serve {LLAMA}"), "engine.enable_prefix_caching") is True
    assert key(made(f"vllm serve {LLAMA}"), "engine.async_scheduling") is True
    assert key(made(f"docker run vllm/vllm-openai:v0.12.0 --model {LLAMA}"), "engine.async_scheduling") is False


def test_a_server_that_does_not_fit_is_said() -> None:
    notes = made("vllm serve deepseek-ai/DeepSeek-R1-0528 -tp 8", gpu="h100").notes
    assert any("does not run as it is" in note and "deepseek-v3 needs" in note for note in notes)
    assert not any("does not run" in note for note in made(f"vllm serve {LLAMA}", gpu="h100").notes)


def test_each_flag_without_a_key_is_named_with_its_reason() -> None:
    found = made(f"vllm serve {LLAMA} --port 1 --max-model-len 9 --max-num-batchd-tokens 4 --kv-cache-dtype int3 --zzz")
    assert found.read.without_effect == {"--port 1": "how clients reach it"}
    assert "bounded by the workload" in found.read.not_modelled["--max-model-len 9"]
    assert found.read.not_modelled["--kv-cache-dtype int3"] == "`model.kv_dtype_bytes` has no value like this"
    assert found.read.unknown == {"--max-num-batchd-tokens 4": "max-num-batched-tokens", "--zzz": ""}
    assert "warning: --max-num-batchd-tokens 4 is unknown, did you mean --max-num-batched-tokens?" in found.all_notes()


def test_the_gpu_is_taken_from_a_node_selector(tmp_path: Path) -> None:
    container = {"image": "vllm/vllm-openai:v0.20", "args": ["--model", "$(NAME)", "--max-num-seqs", "12", "-dp", "2"],
                 "env": [{"name": "NAME", "value": LLAMA}], "resources": {"limits": {"nvidia.com/gpu": 1}}}  # fmt: skip
    pod = {"containers": [{"image": "nginx"}, container], "nodeSelector": {"gpu": "NVIDIA-A100-SXM4-80GB"}}
    data = {"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {"replicas": 3, "template": {"spec": pod}}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(data))
    found = made(str(tmp_path / "a.yaml"))
    assert [key(found, path) for path in ("hardware.gpu", "replicas", "engine.version", "engine.max_num_seqs")] == [
        "a100-80gb", 6, "0.20", 12,
    ]  # fmt: skip


def test_compose_takes_variables_with_their_defaults_and_replicas(tmp_path: Path) -> None:
    service = {"image": "vllm/vllm-openai:v0.11.2", "command": "--model ${M:-" + LLAMA + "} --max-num-seqs ${N}",
               "environment": ["N=33"], "deploy": {"replicas": 2}}  # fmt: skip
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"services": {"web": {"image": "nginx"}, "llm": service}}))
    found = made(str(tmp_path / "a.yaml"))
    assert (key(found, "engine.max_num_seqs"), key(found, "replicas")) == (33, 2)


def test_files_of_flags_of_both_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"model: {LLAMA}\nmax-num-seqs: 17\nenable-prefix-caching: false\n")
    assert key(made(str(tmp_path / "a.yaml")), "engine.max_num_seqs") == 17
    (tmp_path / "b.yaml").write_text("disable_overlap_scheduler: true\nkv_cache_config: {tokens_per_block: 64}\n")
    found = made(str(tmp_path / "b.yaml"), overrides=["model=qwen3-8b"])
    assert [key(found, path) for path in ("model", "engine.async_scheduling", "engine.block_size")] == [
        "qwen3-8b",
        False,
        64,
    ]


def test_a_log_says_blocks_version_and_flags_and_completes_a_command(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(LOG)
    found = made(str(tmp_path / "a.log"))
    expected = {"hardware.num_gpu_blocks": 620_944 // 16, "engine.version": "0.20", "engine.max_num_seqs": 300,
                "hardware.tensor_parallel": 2, "engine.max_num_batched_tokens": 8192,
                "engine.enable_prefix_caching": False}  # fmt: skip
    assert {path: key(found, path) for path in expected} == expected
    both = made(f"vllm serve {LLAMA} --max-num-seqs 5", str(tmp_path / "a.log"))
    assert (key(both, "engine.max_num_seqs"), key(both, "hardware.num_gpu_blocks")) == (5, 38_809)


def test_a_log_of_sglang(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(f"server_args=ServerArgs(model_path='{LLAMA}', tp_size=2, page_size=1, "
                                    "chunked_prefill_size=4096, disable_radix_cache=True, host='a')\n")  # fmt: skip
    found = made(str(tmp_path / "a.log"))
    assert [key(found, path) for path in ("engine.policy", "engine.chunked_prefill_size", "hardware.tensor_parallel",
                                          "engine.enable_prefix_caching")] == ["sglang", 4096, 2, False]  # fmt: skip


def test_a_scrape_says_how_many_drafts_are_accepted(tmp_path: Path) -> None:
    counters = "".join(
        f'vllm:spec_decode_num_drafts_total{{engine="{engine}",model_name="{LLAMA}"}} {steps}.0\n'
        f'vllm:spec_decode_num_drafts_created{{engine="{engine}",model_name="{LLAMA}"}} 1.7e+09\n'
        + "".join(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{engine}",model_name="{LLAMA}",'
            f'position="{place}"}} {count}\n'
            for place, count in enumerate(accepted)
        )
        for engine, steps, accepted in ((0, 600, (450, 300)), (1, 400, (250, 100)))
    )
    (tmp_path / "a.prom").write_text(METRICS + counters)
    drafts = json.dumps(
        {"method": "eagle3", "num_speculative_tokens": 2, "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}
    )
    line = f"vllm serve {LLAMA} --speculative-config '{drafts}'"
    found = made(line, str(tmp_path / "a.prom"))
    assert key(found, "engine.speculative_config.acceptance.rates") == [0.7, 0.4]
    assert "acceptance: the accepted drafts in" in found.text()
    alone = made(str(tmp_path / "a.prom"))
    assert any("accepts [0.7, 0.4] of them" in note for note in alone.notes)
    more = made(line.replace(": 2", ": 3"), str(tmp_path / "a.prom"))
    assert any("has 2 positions for 3 drafts" in note for note in more.notes)
    (tmp_path / "a.prom").write_text(METRICS + counters.replace(" 600.0", " 0.0").replace(" 400.0", " 0.0"))
    assert not any("accepts" in note for note in made(str(tmp_path / "a.prom")).notes)


class _Handler(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, str]] = {}

    def do_GET(self) -> None:
        text = self.answers.get(self.path)
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, format: str, *args: object) -> None:  # the name is the base class's
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_running_vllm_says_its_blocks_version_and_model(address: str, tmp_path: Path) -> None:
    models = json.dumps({"data": [{"id": "chat", "root": LLAMA}]})
    _Handler.answers = {"/metrics": METRICS, "/version": '{"version":"0.15.1"}', "/v1/models": models}
    found = made(f"{address}/metrics")
    expected = {
        "hardware.num_gpu_blocks": 27895, "engine.version": "0.15", "hardware.gpu_memory_utilization": 0.85,
        "model": {"base": "llama-3.1-8b", "kv_dtype_bytes": 1}, "engine.enable_prefix_caching": True,
    }  # fmt: skip
    assert {path: key(found, path) for path in expected} == expected
    assert any("tensor_parallel" in note for note in found.notes)
    (tmp_path / "scrape.prom").write_text(METRICS)
    assert key(made(str(tmp_path / "scrape.prom")), "hardware.num_gpu_blocks") == 27895


def test_a_running_sglang_says_its_arguments(address: str) -> None:
    info = {
        "model_path": LLAMA,
        "tp_size": 2,
        "max_total_num_tokens": 1000,
        "page_size": 10,
        "chunked_prefill_size": 512,
    }
    _Handler.answers = {"/get_server_info": json.dumps(info)}
    found = made(address)
    assert (key(found, "hardware.num_gpu_blocks"), key(found, "engine.chunked_prefill_size")) == (100, 512)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("echo hello", "nothing in 'echo hello' starts a server"),
        ("vllm serve 'a", "No closing quotation"),
        ("vllm serve", "names no model"),
        ("vllm serve nobody/Knows-9B", "the model nobody/Knows-9B is not known"),
        ("missing.yaml", "no such file"),
        ("http://127.0.0.1:9", "no server answers"),
        (f"vllm serve {LLAMA} --max-num-seqs 0", "max_num_seqs"),
        (f"vllm serve {LLAMA} --tensor-parallel-size many", "tensor_parallel"),
    ],
)
def test_wrong_input_is_a_clear_error(source: str, said: str, tmp_path: Path) -> None:
    done = batchlab("from", source, cwd=tmp_path)
    assert done.code == 2
    assert said in done.err
    assert done.out == ""


@pytest.mark.parametrize("text", ["a: 1\n", "kind: Pod\nspec: {containers: [{image: nginx}]}\n", "- 1\n", "a: [\n", ""])
def test_a_file_without_a_server_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        made(str(tmp_path / "a.yaml"))
    assert error.value.file == str(tmp_path / "a.yaml")


def test_one_of_several_servers_is_chosen_by_name(tmp_path: Path) -> None:
    services = {name: {"image": "vllm/vllm-openai", "command": f"--model {LLAMA} --max-num-seqs {seqs}"}
                for name, seqs in (("big", 64), ("small", 8))}  # fmt: skip
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"services": services}))
    starts = read_source(str(tmp_path / "a.yaml"))
    first, notes = choose(starts, None)
    assert "service big is taken of several servers" in notes[0]
    assert key(make([first]), "engine.max_num_seqs") == 64
    assert key(make([choose(starts, "small")[0]]), "engine.max_num_seqs") == 8
    with pytest.raises(InputError, match="no server is called 'huge'"):
        choose(starts, "huge")


def test_the_command_writes_a_scenario_that_runs(tmp_path: Path) -> None:
    out = tmp_path / "a.yaml"
    done = batchlab(
        "from", f"vllm serve {LLAMA} --max-num-seqs 4 --port 1", "--gpu", "h100", "--out", out, cwd=tmp_path
    )
    assert done.code == 0
    assert "--port 1 has no effect here" in done.err
    assert "A PLACEHOLDER" in out.read_text()
    assert (
        batchlab(
            "run", out, "--set", "workload.requests=5", "--json", "--out", str(tmp_path / "run"), cwd=tmp_path
        ).code
        == 0
    )
    assert batchlab("from", f"vllm serve {LLAMA}", "--out", out, cwd=tmp_path).code == 2, "it is there already"
    data = json.loads(batchlab("from", f"vllm serve {LLAMA} --host a", "--json", "--set", "seed=7", cwd=tmp_path).out)
    assert data["scenario"]["seed"] == 7
    assert data["without_effect"] == {"--host a": "how clients reach it"}


def test_the_page_shows_what_the_command_prints(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "from.md").read_text(encoding="utf-8")
    file = re.search(r'```yaml title="compose.yaml"\n(.*?)```', page, re.DOTALL)
    assert file is not None
    (tmp_path / "compose.yaml").write_text(file[1])
    shown = re.findall(
        r"```console\n\$ batchlab ([^\n]*)\n(.*?)```(?:\n\nOn standard error:\n\n```text\n(.*?)```)?", page, re.DOTALL
    )
    assert len(shown) == 2
    for command, out, err in shown:
        done = batchlab(*shlex.split(command), cwd=tmp_path)
        assert done.out == out
        assert not err or done.err == err


def test_a_log_of_requests_validates_the_scenario_at_once(tmp_path: Path) -> None:
    serve = f"vllm serve {LLAMA} --max-num-seqs 4"
    assert batchlab("from", serve, "--out", "a.yaml", "--set", "workload.requests=9", cwd=tmp_path).code == 0
    assert batchlab("run", "./a.yaml", "--out", "server", cwd=tmp_path).code == 0
    assert batchlab("export", "server", "--format", "vllm", cwd=tmp_path).code == 0
    measured = ("--measured", "server/vllm-bench.json")
    done = batchlab("from", serve, "--out", "b.yaml", *measured, "--json", cwd=tmp_path)
    assert done.code == 0
    assert abs(json.loads(done.out)["makespan"]) < 0.05
    assert batchlab("from", serve, *measured, cwd=tmp_path).code == 2, "--measured needs a file to validate"


def test_the_script_of_a_shell_may_be_a_word_that_stands_before_it() -> None:
    assert unfolded(["vllm", "bash", "vllm", "serve"]) == ["vllm", "vllm", "serve"]
