"""The rules, a file a subject: a rule makes one finding. What a rule explains is not explained again by those after it.

Narrow causes come before wide ones, and what costs nothing to mend before hardware: a request that waited beside a free
replica does not prove that memory is short, though that was full where it waited. The severity decides the order in
which findings are told; this order only decides who is asked first.
"""

from scenarios.diagnosis.evidence import Rule
from scenarios.diagnosis.rules.admission_bound import RULE as ADMISSION_BOUND
from scenarios.diagnosis.rules.kv_link import RULE as KV_LINK
from scenarios.diagnosis.rules.load import LOAD_BOUND, QUEUE_TIME, SLOW_DECODE, TRANSIENT_OVERLOAD
from scenarios.diagnosis.rules.memory import MEMORY_BOUND, PREEMPTION
from scenarios.diagnosis.rules.prefix_cache import RULE as PREFIX_CACHE
from scenarios.diagnosis.rules.prompts import LONG_PROMPTS, PADDING, TOO_LARGE, TOO_SMALL, WHOLE_PROMPTS
from scenarios.diagnosis.rules.router import GATEWAY, ROUTER
from scenarios.diagnosis.rules.starvation import RULE as STARVATION

RULES: tuple[Rule, ...] = (
    PADDING,
    KV_LINK,
    PREFIX_CACHE,
    GATEWAY,
    ROUTER,
    STARVATION,
    PREEMPTION,
    WHOLE_PROMPTS,
    LONG_PROMPTS,
    TOO_SMALL,
    TOO_LARGE,
    ADMISSION_BOUND,
    MEMORY_BOUND,
    TRANSIENT_OVERLOAD,
    QUEUE_TIME,
    SLOW_DECODE,
    LOAD_BOUND,
)
