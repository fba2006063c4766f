"""Each key of PEFT 0.21's LoraConfig and what becomes of it here. vLLM 0.32's side is ``vllm/lora/peft_helper.py``."""

#: Read, checked, and given to the engine with the meaning that PEFT gives them.
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

#: About training or loading only; the answers are the same whatever the value. The ``..._config`` of an
#: initialisation is among them because ``init_lora_weights`` says whether it was used. ``fan_in_fan_out`` is about
#: Conv1D layers: PEFT itself sets it false for the linear layers of a Llama.
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

#: Change what the adapter computes, or what it is made of, and vLLM rejects them or drops them without a word.
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

#: Keys that are not of PEFT's LoraConfig 0.21 and say nothing about the answers.
TRAINING_ONLY = frozenset(
    {
        # PEFT before 0.4; the first chose parts of fused layers, which a Llama in transformers does not have.
        "enable_lora",
        "merge_weights",
        # ms-swift: the learning rates of LoRA+, and the dtype that the weights were trained in.
        "lora_dtype",
        "lorap_emb_lr",
        "lorap_lr_ratio",
        # LoRA+ and NEFTune in other tools.
        "loraplus_lr_embedding",
        "loraplus_lr_ratio",
        "neftune_noise_alpha",
        # Fields of auto_mapping, of which some tools make keys.
        "base_model_class",
        "parent_library",
        "unsloth_fixed",
        "transformers_version",
    }
)

#: Initialisations that only choose the first values of the adapter's weights. The others (PiSSA, OLoRA, CorDA,
#: LoftQ) also change the base's, so the adapter would be applied to weights that it was not trained on.
SERVED_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
