"""Results of `vllm bench serve --save-result` and `vllm bench sweep serve`: the mean step of each run.

One run is an object; a sweep's `summary.json` is a list of them, and its folder has one such file for each combination.
"""

from collections.abc import Iterator

from calibration.engines.reader import WHOLE, Reader, Step, json_of, mean_step

_KEYS = {"completed", "duration", "total_input_tokens", "total_output_tokens", "mean_tpot_ms"}


def _is_it(text: str) -> bool:
    held = json_of(text) if text.lstrip()[:1] in ("[", "{") else None
    runs = held if isinstance(held, list) else [held]
    return bool(runs) and all(isinstance(run, dict) and set(run) >= _KEYS for run in runs)


def _steps(text: str) -> Iterator[Step]:
    held = json_of(text)
    for run in held if isinstance(held, list) else [held]:
        done, seconds = float(run["completed"]), float(run["duration"])
        tpot_s = float(run["mean_tpot_ms"]) / 1e3
        if done < 1 or tpot_s <= 0:
            continue
        prompt, answer = (float(run[name]) / done for name in ("total_input_tokens", "total_output_tokens"))
        steps = seconds / tpot_s
        decodes = done * max(answer - 1.0, 0.0) / steps
        yield mean_step(decodes, prompt + answer / 2.0, done / steps, prompt, 1e6 * tpot_s)


READER = Reader("vllm-serve", "vllm bench serve", WHOLE, 0.1, _is_it, _steps)
