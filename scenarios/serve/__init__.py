"""An OpenAI-compatible server whose engine is the simulation in real time.

session     a scenario as a run in progress, and the run folder that it leaves
engine      the simulation on the event loop's clock: what comes in, and when tokens go out
tokenizer   texts as tokens, and answers as words
lengths     how long an answer is
calls       what a request's body may say
submission  from a call to requests of the simulation
replies     what is sent back, whole or as server-sent events
refusals    errors in OpenAI's shape
prometheus  /metrics, by vLLM's names
app         the paths; server: sockets and signals
"""
