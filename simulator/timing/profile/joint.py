"""Attention in a step with prompt chunks: functions alone, so that they can be compiled (setup.py)."""

from simulator.timing.cost import StepShape
from simulator.timing.profile.counts import decode_counts, prompt_counts, windowed_pairs
from simulator.timing.profile.step import Attention, JointTable, PrefillTable


def joint_us(attention: Attention, shape: StepShape) -> float:
    """Microseconds of a layer's attention in a step with prompt chunks, equal decode contexts assumed."""
    prompt = attention.prompt
    return _apart_us(attention, prompt, shape) if isinstance(prompt, PrefillTable) else _together_us(prompt, shape)


def _apart_us(attention: Attention, prompt: PrefillTable, shape: StepShape) -> float:
    """Where prompts and decodes were measured apart."""
    seqs, decode_context, chunks, tokens, context, all_pairs, _, _, longest = shape[:9]
    pairs = float(all_pairs)
    if prompt.windowed:
        pairs -= prompt.windowed * max(0.0, pairs - windowed_pairs(chunks, tokens, pairs, prompt.window))
    if prompt.cached_pairs:
        pairs += prompt.cached_pairs * max(0, context - tokens)
    us = prompt.lookup.us_of_count(chunks, tokens / chunks, prompt_counts(chunks, tokens, pairs, longest))
    if not seqs:
        return us
    mean = decode_context / seqs
    decodes_us = attention.decode.lookup.us_of_count(seqs, mean, decode_counts(seqs, mean)) - attention.launch_us
    return us + attention.beside * decodes_us if decodes_us > 0.0 else us


def _together_us(prompt: JointTable, shape: StepShape) -> float:
    """Where they were measured in one kernel."""
    seqs, decode_context, chunks, tokens, _, pairs, _, _, longest = shape[:9]
    mean = decode_context / seqs if seqs else 0.0
    cached = max(0.0, (pairs - 0.5 * tokens * (tokens + 1)) / tokens)
    counts = prompt_counts(chunks, tokens, pairs, longest, seqs, mean, prompt.knee_keys)
    return prompt.lookup.us((tokens, cached, seqs, mean), counts)
