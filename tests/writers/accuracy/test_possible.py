"""What a closed-loop run's own figures ask of its GPU, by hand."""

from dataclasses import replace

import pytest

from docs.writers.accuracy.possible import contradicts_itself, peak_shares, possible_section
from docs.writers.accuracy.silicon import Scored, SiliconRun, read_silicon
from tests.shared_data import shared

RUN = SiliconRun("a", "llama-3.1-8b", "h200", 1, "fp8", 2000, 100, 64, 0.00974, "0.12.0", 0.12173)


def test_by_hand() -> None:
    """64 prompts of 2,000 tokens and 99 steps of 64 decodes in 0.12173 + 99 x 0.00974 = 1.086 s."""
    decodes, prompts = peak_shares(RUN)
    layers = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)  # q, k, v; o; gate, up, down
    flops = 64 * (2 * layers * 2000 + 2 * 32 * 32 * 128 * 2000**2)
    assert prompts == pytest.approx(flops / 1979e12 / 1.08599, rel=2e-3)
    read = (99 - 64) * (layers + 128256 * 4096 * 2) + 99 * 64 * 2050 * 2 * 32 * 8 * 128
    assert decodes == pytest.approx(read / 4.8e12 / 1.08599, rel=2e-3)
    assert contradicts_itself(RUN)
    assert not contradicts_itself(replace(RUN, tpot_s=0.02))
    assert not contradicts_itself(replace(RUN, ttft_s=float("nan"))), "without a TTFT nothing is said"
    assert not contradicts_itself(replace(RUN, model="qwen3-30b-a3b")), "nor of a mixture"


def test_ranks_share_the_work() -> None:
    one, two = peak_shares(replace(RUN, tpot_s=0.05)), peak_shares(replace(RUN, tpot_s=0.05, tensor_parallel=2))
    assert two == pytest.approx([share / 2 for share in one])


def test_those_told_are_held_against_the_others() -> None:
    plain = replace(RUN, tpot_s=0.02, dtype="bf16")
    scored = [Scored(RUN, 0.02, "tables"), Scored(replace(RUN, osl=2000), 0.02, "tables"), Scored(plain, 0.02, "x")]
    text = possible_section(scored, scored[:2])
    first, second = text.splitlines()[-2:]
    assert first.startswith("| h200 | llama-3.1-8b | 1 | 64 | 2,000 | 100 | 122 | 9.74 |")
    assert first.endswith("| not scored |")
    assert second.endswith("| +105.3 |")
    assert "The 1 other runs" in text
    assert possible_section(scored, []) == ""


@pytest.mark.shared
def test_only_rows_of_one_kind_contradict_themselves() -> None:
    """All other runs ask for 70 % of the datasheet at most; of the fp8 runs of vLLM 0.12 two for more than all."""
    runs = read_silicon(shared("measured/ground_truth/aiconfigurator_silicon/silicon_vllm.csv"))
    odd = [run for run in runs if run.dtype == "fp8" and run.version]
    assert max(sum(peak_shares(run)) for run in runs if run not in odd) < 0.71
    assert sum(map(contradicts_itself, odd)) == 2
