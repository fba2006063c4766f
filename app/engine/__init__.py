"""Engine port and its vLLM implementation: sessions, adapter residency, supervision."""

import os

# vLLM reads this variable when it imports its request models. Its default limit is four stop strings. Tenora checks its
# limit, TENORA_LIMITS__STOP, before a request gets here.
os.environ["VLLM_MAX_STOP_STRINGS"] = str(2**31 - 1)
