"""Classification of the keys of PEFT 0.21's LoraConfig. vLLM 0.32's counterpart is ``vllm/lora/peft_helper.py``."""

#: Keys that are checked and passed to the engine with PEFT's meaning.
SERVED = frozenset(
    {
        "alpha_pattern",
        "bias",
        "ensure_weight_tying",
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

#: Keys about training or loading only: answers do not depend on their values.
#: - The ``..._config`` of an initialisation is one of them, because ``init_lora_weights`` says whether it was used.
#: - ``fan_in_fan_out`` is about Conv1D layers: PEFT itself sets it to false for the linear layers of a Llama.
INFORMATIONAL = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "fan_in_fan_out",
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

#: Keys that change the adapter's computation or its tensors. vLLM rejects them or ignores them silently.
REFUSED = frozenset(
    {
        "alora_invocation_tokens",
        "arrow_config",
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

#: Keys outside PEFT's LoraConfig 0.21 that do not affect answers.
TRAINING_ONLY = frozenset(
    {
        # PEFT before 0.4. enable_lora chose parts of fused layers, which a Llama in transformers does not have.
        "enable_lora",
        "merge_weights",
        # ms-swift: the dtype of the weights in training, and the learning rates of LoRA+.
        "lora_dtype",
        "lorap_emb_lr",
        "lorap_lr_ratio",
        # LoRA+ and NEFTune in other tools.
        "loraplus_lr_embedding",
        "loraplus_lr_ratio",
        "neftune_noise_alpha",
        # Fields of auto_mapping, which some tools write as keys.
        "base_model_class",
        "parent_library",
        "unsloth_fixed",
        "transformers_version",
    }
)

#: Initialisations that only choose the first values of the adapter's weights. The others (PiSSA, OLoRA, CorDA, LoftQ)
#: also change the base's weights. Their adapters would be applied to weights that they were not trained on.
SERVED_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
