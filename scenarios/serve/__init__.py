"""An OpenAI-compatible server whose engine is the simulation in real time.

engine      a scenario as a run in progress on the event loop's clock, and the run folder that it leaves
prometheus  /metrics, by vLLM's names
submission  what a request's body may say, and from a call to requests of the simulation
server      the paths, the replies, whole or as server-sent events; sockets and signals
"""
