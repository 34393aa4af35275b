"""The rules, a finding a file. What a rule explains is not explained again by those after it.

Narrow causes come before wide ones, and what costs nothing to mend before hardware: a request that waited beside a free
replica does not prove that memory is short, though that was full where it waited. The severity decides the order in
which findings are told; this order only decides who is asked first.
"""

from scenarios.diagnosis.finding import Rule
from scenarios.diagnosis.rules import (
    admission_bound,
    chunk_size,
    gateway,
    kv_link,
    load_bound,
    long_prompts,
    memory_bound,
    padding,
    preemption,
    prefix_cache,
    queue_time,
    router,
    slow_decode,
    starvation,
    transient_overload,
    whole_prompts,
)

RULES: tuple[Rule, ...] = (
    padding.RULE,
    kv_link.RULE,
    prefix_cache.RULE,
    gateway.RULE,
    router.RULE,
    starvation.RULE,
    preemption.RULE,
    whole_prompts.RULE,
    long_prompts.RULE,
    chunk_size.TOO_SMALL,
    chunk_size.TOO_LARGE,
    admission_bound.RULE,
    memory_bound.RULE,
    transient_overload.RULE,
    queue_time.RULE,
    slow_decode.RULE,
    load_bound.RULE,
)
