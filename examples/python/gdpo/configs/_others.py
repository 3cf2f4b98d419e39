"""The options of trainers that do not concern the loss, as far as they have no section."""
from ._options import names_of

# Of TRL 1.16.0 and of ms-swift 4.6.0: most are those of transformers.TrainingArguments.
_SHARED = names_of("""
    accelerator_config adam_beta1 adam_beta2 adam_epsilon auto_find_batch_size
    average_tokens_across_devices batch_eval_metrics bf16 bf16_full_eval bnb_4bit_quant_storage
    bnb_4bit_quant_type cache_implementation cast_lm_head_to_fp32 chat_template_kwargs data_seed
    dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context
    dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory
    dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb
    ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed disable_dropout
    disable_tqdm do_eval do_predict do_train ds3_gather_for_generation enable_jit_checkpoint
    eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start eval_steps
    eval_strategy eval_use_gather_object fp16 fp16_full_eval fsdp fsdp_config full_determinism
    generation_batch_size generation_kwargs gradient_accumulation_steps gradient_checkpointing
    gradient_checkpointing_kwargs greater_is_better hub_always_push hub_model_id
    hub_private_repo hub_revision hub_strategy hub_token ignore_data_skip include_for_metrics
    include_num_input_tokens_seen label_names label_smoothing_factor learning_rate
    length_column_name liger_kernel_config load_best_model_at_end local_rank log_completions
    log_completions_hub_repo log_level log_level_replica log_on_each_node log_unique_prompts
    logging_first_step logging_nan_inf_filter logging_steps logging_strategy lora_alpha
    lora_dropout lr_scheduler_kwargs lr_scheduler_type max_grad_norm max_steps
    max_tool_calling_iterations metric_for_best_model min_p model_init_kwargs model_revision
    neftune_noise_alpha num_completions_to_print num_generations_eval num_iterations
    num_train_epochs optim optim_args optim_target_modules output_dir parallelism_config
    per_device_eval_batch_size per_device_train_batch_size prediction_loss_only project
    push_to_hub ref_model_mixup_alpha ref_model_sync_steps remove_unused_columns
    repetition_penalty report_to restore_callback_states_from_checkpoint resume_from_checkpoint
    reward_funcs run_name save_on_each_node save_only_model save_steps save_strategy
    save_total_limit seed shuffle_dataset skip_memory_metrics steps_per_generation tf32 top_k
    top_p torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps
    trackio_bucket_id trackio_space_id trackio_static_space_id train_sampling_strategy use_cache
    use_cpu use_dora use_rslora use_transformers_paged vllm_enable_sleep_mode
    vllm_gpu_memory_utilization vllm_group_port vllm_max_model_length vllm_mode vllm_model_impl
    vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout
    vllm_structured_outputs_regex vllm_tensor_parallel_size warmup_steps weight_decay
""")

#: Of TRL's GRPOConfig and RLOOConfig, and of its command.
TRL = _SHARED | names_of("""
    activation_checkpointing activation_checkpointing_kwargs attn_implementation dataset_config
    dataset_name dataset_streaming dataset_test_split dataset_train_split dtype
    ignore_bias_buffers load_in_4bit load_in_8bit log_multimodal lora_modules_to_save lora_r
    lora_target_modules
    lora_target_parameters lora_task_type model_name_or_path num_generations pad_to_multiple_of
    reward_model_name_or_path transformers_continuous_batching_config trust_remote_code
    use_bnb_nested_quant use_peft use_transformers_continuous_batching
""")

#: Of `swift rlhf`.
MS_SWIFT = _SHARED | names_of("""
    acc_strategy adalora_beta1 adalora_beta2 adalora_deltaT adalora_init_r
    adalora_orth_reg_weight adalora_target_r adalora_tfinal adalora_tinit adapter_act
    adapter_length adapters add_non_thinking_prefix add_version agent_template aligner_lr
    api_key async_generate attn_impl base_url bnb_4bit_compute_dtype bnb_4bit_use_double_quant
    boft_block_num boft_block_size boft_dropout boft_n_butterfly_factor cache_files
    cached_dataset cached_val_dataset callbacks center_rewards_coefficient check_model
    chord_enable_phi_function chord_mu_decay_steps chord_mu_peak chord_mu_valley
    chord_mu_warmup_steps chord_sft_per_device_train_batch_size cliprange cliprange_value
    columns commit_message completion_length_limit_scope context_manager cosine_max_len
    cosine_max_len_value_correct cosine_max_len_value_wrong cosine_min_len_value_correct
    cosine_min_len_value_wrong cpo_alpha create_checkpoint_symlink custom_dataset_info
    custom_register_path data_range dataset dataset_num_proc dataset_shuffle
    decision_drop_instructions decision_shuffle_fields decision_state_as_text
    decision_subsample_options deepspeed_autotp_size desirable_weight device_groups device_map
    disable_auto_column_mapping disable_ignore_empty_think discopop_tau download_mode
    early_stop_interval easy_query_threshold enable_channel_loss enable_dft_loss
    enable_flattened_weight_sync enable_npu_model_patch enable_thinking engine_kwargs
    eval_backend eval_dataset eval_dataset_args eval_generation_config eval_limit eval_metric
    eval_num_proc eval_output_dir eval_url eval_use_evalscope exist_ok experts_impl
    external_plugins extra_eval_args fourier_n_frequency fourier_scaling freeze_aligner
    freeze_llm freeze_parameters freeze_parameters_ratio freeze_parameters_regex freeze_vit
    galore_cos_threshold galore_gamma_proj galore_optim_per_parameter galore_proj_bits
    galore_proj_group_size galore_proj_quant galore_proj_type galore_quantization
    galore_queue_size galore_rank galore_scale galore_target_modules galore_update_proj_gap
    galore_with_embedding gamma generation_config generation_max_length generation_num_beams
    gkd_logits_topk group_by_length group_size gym_env host hqq_axis ignore_args_error
    infer_backend init_strategy init_weights interleave_prob is_binary_loss_scale is_multimodal
    kl_coef label_smoothing lam lang lazy_tokenize ld_alpha lisa_activated_layers
    lisa_step_interval llamapro_num_groups llamapro_num_new_blocks lmbda
    lmdeploy_cache_max_entry_count lmdeploy_quant_policy lmdeploy_session_len lmdeploy_tp
    lmdeploy_vision_batch_size load_args load_data_args load_from_cache_file local_dataset
    local_repo_path local_rollout_forward_batch_size log_entropy log_interval
    log_rollout_offpolicy_metrics logging_dir logprobs lora_bias lora_dtype lora_ga_batch_size
    lora_ga_direction lora_ga_iters lora_ga_max_length lora_ga_scale lora_ga_stable_gamma
    lora_rank lorap_lr_ratio loss_scale loss_weights mask_truncated_completions max_batch_size
    max_epochs max_length max_logprobs max_memory max_model_len max_new_tokens max_pixels
    max_resample_times max_shard_size max_turns mcore_adapter mcore_model merge_lora metric
    missing_eos_penalty model model_author model_kwargs model_name model_type modules_to_save
    move_model_batches mrl_dims multi_objective_aggregation n_best_to_keep new_special_tokens
    norm_bbox num_beams num_labels num_mini_batches num_ppo_epochs num_return_sequences
    num_sample_generations num_sampling_batch_size num_sampling_batches
    off_policy_mask_threshold offload_model offload_optimizer offload_teacher_model optimizer
    orm_model output_file override_exist_file owned_by packing packing_length packing_num_proc
    packing_strategy padding_free padding_side port predict_with_generate preserve_thinking
    prm_model prm_threshold problem_type quant_batch_size quant_bits quant_method
    quant_n_samples ray_exp_name ref_adapter_name ref_adapters ref_model ref_model_revision
    ref_model_type reference_free reft_args reft_intervention_type reft_layer_key reft_layers
    reft_rank repetition_max_penalty repetition_n_grams reranker_use_activation response_length
    response_prefix result_path resume resume_only_model reward_adapters reward_model
    reward_model_plugin reward_model_revision reward_model_type reward_template rlsd_lambda
    rlsd_lambda_decay_steps rlsd_lambda_warmup_steps rlsd_negative_only rlsd_reweight_clip_range
    rope_scaling router_aux_loss_coef rpo_alpha safe_serialization sampler_engine sampler_type
    sapo_temperature_neg sapo_temperature_pos save_missing_weights seq_kd sequence_parallel_size
    served_model_name server_name server_port sft_alpha sglang_context_length
    sglang_disable_cuda_graph sglang_disable_custom_all_reduce sglang_dp_size
    sglang_enable_dp_attention sglang_enable_ep_moe sglang_ep_size sglang_kv_cache_dtype
    sglang_mem_fraction_static sglang_pp_size sglang_quantization sglang_speculative_algorithm
    sglang_speculative_eagle_topk sglang_speculative_num_draft_tokens
    sglang_speculative_num_steps sglang_tp_size share shuffle_buffer_size simpo_gamma
    sleep_level soft_cache_length soft_max_length sortish_sampler split_dataset_ratio
    ssl_certfile ssl_keyfile stop_words stopping_strategy stream streaming strict
    structured_outputs_regex studio_title swanlab_email_language swanlab_exp_name swanlab_mode
    swanlab_notification_method swanlab_project swanlab_receiver_email swanlab_secret
    swanlab_sender_email swanlab_smtp_port swanlab_smtp_server swanlab_token swanlab_webhook_url
    swanlab_workspace system target_modules target_parameters target_regex task_type
    teacher_adapters teacher_deepspeed teacher_model_revision teacher_model_type teacher_tag_key
    template template_backend template_mode test_convert_dtype test_convert_precision
    thread_count to_cached_dataset to_hf to_mcore to_ollama to_peft_format top_logprobs
    torch_dtype train_dataloader_shuffle trainable_parameters trainable_parameters_regex
    truncation_strategy tuner_backend tuner_type undesirable_weight use_bias_correction_kl
    use_chat_template use_flash_ckpt use_galore use_gym_env use_hf use_logits_to_keep use_ray
    use_swift_lora val_dataset val_dataset_sample val_dataset_shuffle vera_d_initial
    vera_dropout vera_projection_prng_key vera_rank verbose vf_coef vit_gradient_checkpointing
    vit_lr vllm_data_parallel_size vllm_disable_cascade_attn vllm_disable_custom_all_reduce
    vllm_enable_expert_parallel vllm_enable_lora vllm_enable_prefix_caching vllm_enforce_eager
    vllm_engine_kwargs vllm_importance_sampling_cap vllm_importance_sampling_correction
    vllm_importance_sampling_mode vllm_limit_mm_per_prompt vllm_max_lora_rank vllm_max_model_len
    vllm_max_num_seqs vllm_mm_processor_cache_gb vllm_pipeline_parallel_size vllm_quantization
    vllm_reasoning_parser vllm_server_group_port vllm_server_pass_dataset
    vllm_speculative_config vllm_use_async_engine wandb_log_unique_prompts warmup_ratio
    whiten_rewards write_batch_size zero_hpz_partition_size
""")
