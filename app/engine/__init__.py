"""vLLM in this process: arguments, one life, staging and slots, supervision."""

import os

# vLLM reads it as its requests' models are imported, and takes four stop strings by itself. How many a request may
# have is checked before it comes here: TENORA_LIMITS__STOP.
os.environ["VLLM_MAX_STOP_STRINGS"] = str(2**31 - 1)
