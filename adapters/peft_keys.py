"""Each key of PEFT 0.21's LoraConfig and what becomes of it here. vLLM 0.32's side is ``vllm/lora/peft_helper.py``."""

#: Read, checked, and given to the engine with the meaning that PEFT gives them.
SERVED = frozenset(
    {
        "alpha_pattern",
        "bias",
        "exclude_modules",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "peft_type",
        "r",
        "rank_pattern",
        "target_modules",
        "task_type",
        "use_rslora",
    }
)

#: About training or loading only; the answers are the same whatever the value. The ``..._config`` of an
#: initialisation is among them because ``init_lora_weights`` says whether it was used.
INFORMATIONAL = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "inference_mode",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
    }
)

#: Change what the adapter computes, or what it is made of, and vLLM rejects them or drops them without a word.
REFUSED = frozenset(
    {
        "alora_invocation_tokens",
        "arrow_config",
        "ensure_weight_tying",
        "fan_in_fan_out",
        "kasa_config",
        "layer_replication",
        "lora_bias",
        "megatron_config",
        "modules_to_save",
        "monteclora_config",
        "target_parameters",
        "trainable_token_indices",
        "use_bdlora",
        "use_dora",
        "use_qalora",
        "velora_config",
    }
)

#: Initialisations that only choose the first values of the adapter's weights. The others (PiSSA, OLoRA, CorDA,
#: LoftQ) also change the base's, so the adapter would be applied to weights that it was not trained on.
SERVED_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
