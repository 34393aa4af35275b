from simulator.compiled import heed_environment

heed_environment()
