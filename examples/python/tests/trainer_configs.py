"""Configurations of trainers, from their defaults, tables of options, papers' settings and scripts.

Each is a line of what it is, lines of its options as in a command, and after "=>" what it means:
the estimator (of tokens, where it gives each its own) | the loss, with " + " before a second
one | the pre-passes, with commas between | the options that this library lacks. "-" means none.
What the line of a loss leaves out is the preset's own. In the options of verl "A." stands for
actor_rollout_ref.actor., "L." for its policy_loss. and "R." for algorithm.rollout_correction.; in
those of OpenRLHF "V." stands for algo.advantage., and "~" is a blank inside of a word.
"""

VERL = """
defaults of ppo_trainer.yaml
  -
  => verl::gae gamma=1 lambda=1 | verl::vanilla | - | -
grpo_trainer, low_var_kl
  algorithm.adv_estimator=grpo A.use_kl_loss=True A.kl_loss_coef=0.001 A.kl_loss_type=low_var_kl
  A.entropy_coeff=0 A.optim.lr=1e-6 A.fsdp_config.param_offload=False data.train_batch_size=1024
  trainer.total_epochs=15
  => verl::grpo | verl::vanilla kl.beta=0.001 | - | -
grpo_trainer, KL in the reward
  algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=True algorithm.kl_ctrl.kl_coef=0.001
  => verl::grpo penalty.coef=0.001 | verl::vanilla | - | -
grpo_trainer, entropy bonus
  algorithm.adv_estimator=grpo A.entropy_coeff=0.001
  => verl::grpo | verl::vanilla entropy.coef=0.001 | - | -
entropy over tokens
  algorithm.adv_estimator=grpo L.loss_mode=sapo A.entropy_coeff=0.001
  => verl::grpo | verl::sapo entropy.coef=0.001 entropy.mean=tokens | - | -
entropy and KL over rows
  algorithm.adv_estimator=grpo L.loss_mode=geo_mean A.loss_agg_mode=seq-mean-token-sum
  A.entropy_coeff=0.001 A.use_kl_loss=True
  => verl::grpo | verl::geo_mean level.map.low=0.2 level.map.high=0.2 + distillation kl=k3
     kl.beta=0.001 kl.against=ref kl.input.lo=-20 kl.input.hi=20 kl.output.lo=-10 kl.output.hi=10
     aggregate.mode=seq-mean-token-sum aggregate.over=non_empty_rows entropy.coef=0.001 | - | -
entropy of all tokens, beside rejections in bypass_mode
  algorithm.adv_estimator=grpo R.bypass_mode=true R.rollout_rs=seq_mean_k3
  R.rollout_rs_threshold=0.01 A.entropy_coeff=0.001
  => verl::grpo | verl::vanilla + distillation kl.beta=0 kl.against=ref entropy.coef=0.001 |
     verl::seq_mean_k3 max=0.01 reach=mask pair=drift | -
dapo
  algorithm.adv_estimator=grpo A.clip_ratio_low=0.2 A.clip_ratio_high=0.28 A.clip_ratio_c=10.0
  A.loss_agg_mode=token-mean A.use_kl_loss=False A.kl_loss_coef=0.0
  algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc
  => verl::grpo | verl::vanilla surrogate.high=0.28 surrogate.dual=10 | - | -
drgrpo
  algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=False
  A.loss_agg_mode=seq-mean-token-sum-norm A.loss_scale_factor=1024 A.use_kl_loss=False
  => verl::grpo_no_std | verl::vanilla aggregate.mode=seq-mean-token-sum-norm
     aggregate.over=non_empty_rows aggregate.constant=1024 aggregate.padded_width=true | - | -
drgrpo without a factor
  algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=False
  A.loss_agg_mode=seq-mean-token-sum-norm
  => verl::grpo_no_std | verl::vanilla aggregate.mode=seq-mean-token-sum-norm
     aggregate.over=non_empty_rows aggregate.padded_width=true | - | -
gspo_trainer
  algorithm.adv_estimator=grpo L.loss_mode=gspo A.loss_agg_mode=seq-mean-token-mean
  A.clip_ratio_low=0.0003 A.clip_ratio_high=0.0004
  => verl::grpo | verl::gspo surrogate.low=0.0003 surrogate.high=0.0004
     aggregate.mode=seq-mean-token-mean aggregate.over=non_empty_rows aggregate.row_count_eps=1e-08
     | - | -
sapo_trainer
  algorithm.adv_estimator=grpo L.loss_mode=sapo A.loss_agg_mode=seq-mean-token-mean A.tau_pos=1.0
  A.tau_neg=1.05
  => verl::grpo | verl::sapo | - | -
sapo with a KL term over tokens
  algorithm.adv_estimator=grpo L.loss_mode=sapo A.use_kl_loss=True
  => verl::grpo | verl::sapo + distillation kl=k3 kl.beta=0.001 kl.against=ref kl.input.lo=-20
     kl.input.hi=20 kl.output.lo=-10 kl.output.hi=10 | - | -
cispo_trainer
  algorithm.adv_estimator=grpo L.loss_mode=cispo A.clip_ratio_low=10 A.clip_ratio_high=0.2
  A.use_kl_loss=True
  => verl::grpo | verl::cispo kl.beta=0.001 factor.min_ratio=0 | - | -
gmpo_trainer
  algorithm.adv_estimator=grpo L.loss_mode=geo_mean A.clip_ratio_low=0.4 A.clip_ratio_high=0.4
  A.use_kl_loss=True A.kl_loss_type=low_var_kl
  => verl::grpo | verl::geo_mean + distillation kl=k3 kl.beta=0.001 kl.against=ref kl.input.lo=-20
     kl.input.hi=20 kl.output.lo=-10 kl.output.hi=10 | - | -
gpg_trainer
  algorithm.adv_estimator=gpg L.loss_mode=gpg A.use_kl_loss=True A.kl_loss_type=kl
  => verl::gpg | verl::gpg kl.estimator=k1 kl.beta=0.001 kl.input.lo=-inf kl.input.hi=inf
     kl.output.lo=-inf kl.output.hi=inf | - | -
dppo_trainer, tv
  algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=False L.loss_mode=dppo_tv
  A.loss_agg_mode=seq-mean-token-sum-norm A.clip_ratio_low=0.15 A.clip_ratio_high=0.15
  A.clip_ratio_c=10000.0 model_engine=megatron A.megatron.param_offload=True
  => verl::grpo_no_std | verl::dppo_tv aggregate.mode=seq-mean-token-sum-norm
     aggregate.over=non_empty_rows aggregate.padded_width=true factor.max_ratio=10000 |
     verl::dppo_tv min=-0.15 max=0.15 | -
dppo_trainer, kl
  algorithm.adv_estimator=grpo L.loss_mode=dppo_kl A.clip_ratio_low=0.05 A.clip_ratio_high=0.06
  => verl::grpo | verl::dppo_kl | verl::dppo_kl min=-0.05 max=0.06 | -
entropy recipe, clip_cov
  algorithm.adv_estimator=grpo L.loss_mode=clip_cov A.clip_ratio_low=1 A.clip_ratio_high=1
  L.clip_cov_ratio=0.0002
  => verl::grpo | verl::clip_cov surrogate.low=1 surrogate.high=1 | verl::clip_cov share=0.0002
     min=1 max=5 low=1 high=1 | -
entropy recipe, kl_cov
  algorithm.adv_estimator=grpo L.loss_mode=kl_cov L.ppo_kl_coef=1 L.kl_cov_ratio=0.002
  => verl::grpo | verl::kl_cov kl.beta=1 | verl::kl_cov share=0.002 | -
dro
  algorithm.adv_estimator=grpo L.loss_mode=dro L.dro_beta=0.5
  => verl::grpo | verl::dro | - | -
dro without its coefficient
  algorithm.adv_estimator=grpo L.loss_mode=dro
  => verl::grpo | - | - | actor_rollout_ref.actor.policy_loss.dro_beta
gdpo_trainer
  algorithm.adv_estimator=gdpo +algorithm.gdpo_reward_keys=["accuracy_reward","format_reward"]
  algorithm.gdpo_reward_weights=[1.0,0.5]
  => verl::gdpo | verl::vanilla | - | -
rloo_trainer
  algorithm.adv_estimator=rloo algorithm.use_kl_in_reward=True algorithm.kl_penalty=kl
  algorithm.kl_ctrl.kl_coef=0.001
  => verl::rloo penalty.coef=0.001 | verl::vanilla | - | -
reinforce_plus_plus_trainer, baseline
  algorithm.adv_estimator=reinforce_plus_plus_baseline A.use_kl_loss=True A.kl_loss_type=mse
  => verl::reinforce_plus_plus_baseline | verl::vanilla kl.estimator=k2 kl.beta=0.001
     kl.input.lo=-inf kl.input.hi=inf kl.output.lo=-inf kl.output.hi=inf | - | -
reinforce_plus_plus_trainer
  algorithm.adv_estimator=reinforce_plus_plus A.use_kl_loss=True A.kl_loss_type=mse
  => verl::reinforce_plus_plus gamma=1 | verl::vanilla kl.estimator=k2 kl.beta=0.001
     kl.input.lo=-inf kl.input.hi=inf kl.output.lo=-inf kl.output.hi=inf | - | -
remax_trainer
  algorithm.adv_estimator=remax algorithm.use_kl_in_reward=True
  => - | verl::vanilla | - | algorithm.adv_estimator
opo_trainer
  algorithm.adv_estimator=opo A.entropy_coeff=0
  => verl::opo | verl::vanilla | - | -
pass@k
  algorithm.adv_estimator=grpo_passk
  => verl::grpo_passk | verl::vanilla | - | -
otb_trainer
  algorithm.adv_estimator=optimal_token_baseline A.calculate_sum_pi_squared=True
  => - | verl::vanilla | - | algorithm.adv_estimator
decoupled_token_is
  algorithm.adv_estimator=grpo R.rollout_is=token R.rollout_is_threshold=2.0
  => verl::grpo | verl::vanilla | verl::token_is clip.hi=2.0 | -
decoupled_token_icepop
  algorithm.adv_estimator=grpo R.rollout_is=token R.rollout_is_threshold=0.5_5.0
  => verl::grpo | verl::vanilla | verl::token_icepop gate.min=0.5 gate.max=5.0 | -
decoupled_geo_rs_seq_tis, normalized
  algorithm.adv_estimator=rloo R.rollout_is=sequence R.rollout_rs=seq_mean_k1
  R.rollout_rs_threshold=0.999_1.001 R.rollout_is_batch_normalize=true
  => verl::rloo | verl::vanilla | verl::sequence_is clip.hi=2.0, mean_one of=rows count_eps=1e-8
     least=1e-8, verl::seq_mean_k1 min=-0.0010005003335835344 max=0.0009995003330834232 reach=mask |
     -
decoupled_k3_rs
  algorithm.adv_estimator=rloo R.rollout_rs=seq_mean_k3 R.rollout_rs_threshold=0.01
  => verl::rloo | verl::vanilla | verl::seq_mean_k3 max=0.01 reach=mask | -
bypass_ppo_clip_k3_rs
  algorithm.adv_estimator=grpo R.bypass_mode=true R.loss_type=ppo_clip R.rollout_rs=seq_mean_k3
  R.rollout_rs_threshold=0.01
  => verl::grpo | verl::vanilla | verl::seq_mean_k3 max=0.01 reach=mask pair=drift | -
bypass_pg_is
  algorithm.adv_estimator=grpo R.bypass_mode=true R.loss_type=reinforce R.rollout_is=sequence
  => verl::grpo | verl::reinforce | verl::sequence_is clip.hi=2.0 pair=drift | -
bypass_ppo_clip_geo_rs with a KL term
  algorithm.adv_estimator=grpo R.bypass_mode=true R.rollout_rs=seq_mean_k1
  R.rollout_rs_threshold=0.5_2.0 A.use_kl_loss=True A.kl_loss_type=k1
  => verl::grpo | verl::vanilla + distillation kl=k1 kl.beta=0.001 kl.against=ref |
     verl::seq_mean_k1 min=-0.6931471805599453 max=0.6931471805599453 reach=mask pair=drift | -
the plug-in's own names, with a KL term
  algorithm.adv_estimator=grpo L.loss_mode=gdpo:dr_grpo~own~constant=512 A.use_kl_loss=True
  => verl::grpo | dr_grpo aggregate.constant=512 + distillation kl=k3 kl.beta=0.001 kl.against=ref
     kl.input.lo=-20 kl.input.hi=20 kl.output.lo=-10 kl.output.hi=10 | - | -
the plug-in's own names
  algorithm.adv_estimator=gdpo algorithm.gdpo_estimator=trl::gdpo L.loss_mode=gdpo:dapo~own
  => trl::gdpo | dapo | - | -
a slip
  algorithm.adv_estimator=grpo A.clip_ratio_hi=0.28 algorithm.kl_loss_coef=0.1
  => verl::grpo | verl::vanilla | - | actor_rollout_ref.actor.clip_ratio_hi algorithm.kl_loss_coef
"""

TRL = """
defaults of GRPOConfig
  -
  => trl::grpo | trl::dapo | - | -
DeepSeekMath, with R1's numbers
  loss_type=grpo beta=0.001 epsilon=10.0 num_generations=16 max_completion_length=32768
  steps_per_generation=16
  => trl::grpo | trl::grpo surrogate.low=inf surrogate.high=10 kl.gradient=importance_weighted
     kl.beta=0.001 | - | -
GSPO
  importance_sampling_level=sequence loss_type=grpo beta=0.0 epsilon=3e-4 epsilon_high=4e-4
  gradient_accumulation_steps=1
  => trl::grpo | trl::grpo sequence level.statistic.count_eps=0 level.bounds.lo=-inf
     level.bounds.hi=inf surrogate.low=0.0003 surrogate.high=0.0004 | - | -
DAPO
  mask_truncated_completions=True loss_type=dapo epsilon_high=0.28 epsilon=0.2 beta=0.0
  num_generations=16
  => trl::grpo | trl::dapo surrogate.high=0.28 | overlong | -
80/20 rule
  mask_truncated_completions=True loss_type=dapo epsilon_high=0.28 top_entropy_quantile=0.2
  => trl::grpo | trl::dapo surrogate.high=0.28 | overlong, top_entropy 0.8 | -
Dr. GRPO
  loss_type=dr_grpo scale_rewards=False max_completion_length=3000 beta=0.0
  => trl::grpo_no_scale | trl::dr_grpo aggregate.constant=3000 | - | -
Dr. GRPO, scaled
  loss_type=dr_grpo max_completion_length=3000
  => trl::grpo | trl::dr_grpo aggregate.constant=3000 | - | -
Lite PPO
  scale_rewards=batch loss_type=dapo temperature=0.99 top_p=0.99 top_k=100
  => trl::grpo_batch_scale | trl::dapo | - | -
truncated importance sampling
  use_vllm=True vllm_importance_sampling_correction=True
  vllm_importance_sampling_mode=sequence_truncate vllm_importance_sampling_cap=2.0
  => trl::grpo | trl::dapo | trl::sequence_truncate clip.lo=-inf clip.hi=2 | -
masked importance sampling
  use_vllm=True vllm_importance_sampling_mode=sequence_mask vllm_importance_sampling_cap=2.0
  => trl::grpo | trl::dapo | trl::sequence_mask gate.min=-inf gate.max=2 | -
IcePop
  use_vllm=True vllm_importance_sampling_mode=token_mask vllm_importance_sampling_clip_min=0.5
  vllm_importance_sampling_clip_max=5.0
  => trl::grpo | trl::dapo | trl::token_mask gate.min=0.5 gate.max=5 | -
token truncation without an upper end
  use_vllm=True vllm_importance_sampling_mode=token_truncate vllm_importance_sampling_clip_min=0.1
  vllm_importance_sampling_clip_max=none
  => trl::grpo | trl::dapo | trl::token_truncate clip.lo=0.1 clip.hi=inf | -
no correction
  use_vllm=True vllm_importance_sampling_correction=False
  => trl::grpo | trl::dapo | - | -
CISPO and ScaleRL
  loss_type=cispo epsilon_high=5.0 scale_rewards=batch num_generations=16
  mask_truncated_completions=True use_vllm=True
  => trl::grpo_batch_scale | trl::cispo | overlong, trl::sequence_mask gate.min=-inf gate.max=3 | -
SAPO
  loss_type=sapo sapo_temperature_pos=1.0 sapo_temperature_neg=1.05
  => trl::grpo | trl::sapo | - | -
LUSPO
  loss_type=luspo importance_sampling_level=sequence epsilon=2e-3 epsilon_high=2.5e-3
  => trl::grpo | trl::luspo surrogate.low=0.002 surrogate.high=0.0025 | - | -
VESPO
  loss_type=vespo use_vllm=True vllm_importance_sampling_mode=token_truncate vespo_k_pos=2.0
  vespo_lambda_neg=2.0
  => trl::grpo | trl::vespo | trl::token_truncate clip.lo=-inf clip.hi=3 reach=level | -
VESPO with masks of tokens
  loss_type=vespo use_vllm=True vllm_importance_sampling_mode=token_mask
  => trl::grpo | trl::vespo | trl::token_mask gate.min=-inf gate.max=3 importance.reach=level
     gate.reach=level | -
VESPO with masks of rows
  loss_type=vespo use_vllm=True
  => trl::grpo | trl::vespo | - | vllm_importance_sampling_mode
VESPO with the corrected KL
  loss_type=vespo beta=0.1
  => trl::grpo | - | - | loss_type
INTELLECT-2
  delta=4.0 epsilon=0.2 beta=0.001 use_bias_correction_kl=False
  => trl::grpo | trl::dapo surrogate.delta=4 kl.beta=0.001 | - | -
DeepSeek-V3.2
  off_policy_mask_threshold=0.5 use_vllm=True beta=0.04
  => trl::grpo | trl::dapo kl.gradient=importance_weighted kl.beta=0.04 | trl::off_policy_mask
     max=0.5, trl::sequence_mask gate.min=-inf gate.max=3 | -
off-policy mask without vLLM
  off_policy_mask_threshold=0.5
  => trl::grpo | trl::dapo | trl::off_policy_mask max=0.5 pair=update | -
GDPO
  multi_objective_aggregation=normalize_then_sum reward_weights=[1.0,1.0]
  => trl::gdpo | trl::dapo | - | -
bnpo
  loss_type=bnpo
  => trl::grpo | trl::bnpo | - | -
entropy bonus
  entropy_coef=0.001
  => trl::grpo | trl::dapo entropy.coef=0.001 entropy.mean=tokens | - | -
adaptive entropy
  use_adaptive_entropy=True entropy_target=0.2
  => trl::grpo | trl::dapo entropy.mean=tokens | - | -
adaptive entropy of the high tokens
  use_adaptive_entropy=True top_entropy_quantile=0.2 entropy_coef=0.01 loss_type=bnpo
  => trl::grpo | trl::bnpo entropy.mean=tokens | top_entropy 0.8, top_entropy 0.8 reach=entropy,
     mean_one reach=entropy | -
adaptive entropy that cannot be
  use_adaptive_entropy=True entropy_coef_delta=-1
  => trl::grpo | trl::dapo | - | use_adaptive_entropy
entropy of the high tokens
  entropy_coef=0.001 top_entropy_quantile=0.2
  => trl::grpo | trl::dapo entropy.coef=0.001 entropy.mean=tokens | top_entropy 0.8, top_entropy 0.8
     reach=entropy, mean_one reach=entropy | -
Liger
  loss_type=dapo use_liger_kernel=True
  => trl::grpo | trl::dapo | - | use_liger_kernel
mixture of experts
  router_aux_loss_coef=0.001 model_init_kwargs.output_router_logits=true
  => trl::grpo | trl::dapo | - | -
defaults of RLOOConfig
  trainer=rloo
  => trl::rloo penalty.coef=0.05 | trl::rloo | - | -
RLOO with options
  normalize_advantages=True beta=0.0 reward_clip_range=[-1,1] epsilon_high=0.3 reward_weights=[1,2]
  => trl::rloo_normalized reward_clip=-1,1 | trl::rloo surrogate.high=0.3 | - | -
a slip
  epsilon_hi=0.28 loss_type=dapo_
  => trl::grpo | - | - | loss_type epsilon_hi
"""

MS_SWIFT = """
defaults
  rlhf_type=grpo
  => ms_swift::grpo | ms_swift::grpo | - | -
grpo.sh
  rlhf_type=grpo reward_funcs=accuracy use_vllm=true vllm_mode=colocate beta=0.001
  learning_rate=1e-6 num_generations=16 deepspeed=zero2 tuner_type=lora
  => ms_swift::grpo | ms_swift::grpo kl.beta=0.001 | - | -
GSPO
  importance_sampling_level=sequence epsilon=3e-4 epsilon_high=4e-4 beta=0 steps_per_generation=4
  => ms_swift::grpo | ms_swift::grpo sequence level.statistic.count_eps=0 level.bounds.lo=-inf
     level.bounds.hi=inf surrogate.low=0.0003 surrogate.high=0.0004 kl.beta=0 | - | -
GSPO-token
  importance_sampling_level=sequence_token epsilon=3e-4 epsilon_high=4e-4 beta=0
  => ms_swift::grpo | ms_swift::grpo sequence_token level.statistic.count_eps=0 level.bounds.lo=-inf
     level.bounds.hi=inf surrogate.low=0.0003 surrogate.high=0.0004 kl.beta=0 | - | -
DAPO
  loss_type=bnpo epsilon_high=0.28 dynamic_sample=true max_resample_times=3 overlong_filter=true
  reward_funcs=["accuracy","soft_overlong"] soft_cache_length=4096 beta=0
  => ms_swift::grpo | ms_swift::bnpo surrogate.high=0.28 kl.beta=0 | overlong | -
dapo
  loss_type=dapo epsilon_high=0.28
  => ms_swift::grpo | ms_swift::dapo surrogate.high=0.28 | - | -
Dr. GRPO
  loss_type=dr_grpo scale_rewards=none max_completion_length=4096
  => ms_swift::grpo | ms_swift::dr_grpo aggregate.constant=4096 | - | -
CISPO
  loss_type=cispo epsilon_high=5.0 beta=0
  => ms_swift::grpo | ms_swift::cispo kl.beta=0 | - | -
sapo.sh
  loss_type=sapo tau_pos=1.0 tau_neg=1.05 beta=0.01 temperature=1.0
  => ms_swift::grpo | ms_swift::sapo kl.beta=0.01 | - | -
fipo.sh
  use_vllm=true beta=0 dynamic_sample=true loss_type=fipo epsilon_high=0.28 fipo_decay_rate=32
  fipo_clip_range=0.2 fipo_clip_high_only=true fipo_safety_threshold=10.0
  => ms_swift::grpo | ms_swift::fipo surrogate.high=0.28 kl.beta=0 | ms_swift::fipo
     gamma=0.9785720620877001 drop_above=inf clip.lo=1.0 clip.hi=1.2 safety=10.0 | -
fipo.sh of an earlier release
  loss_type=fipo fipo_detach_weight=true beta=0
  => ms_swift::grpo | ms_swift::fipo kl.beta=0 | ms_swift::fipo gamma=0.9785720620877001
     drop_above=inf clip.lo=1.0 clip.hi=1.2 safety=4.0 | fipo_detach_weight
FIPO without safety and with a bound
  loss_type=fipo fipo_safety_threshold=none fipo_clip_high_only=false delta=4.0
  => ms_swift::grpo | ms_swift::fipo surrogate.delta=4 | ms_swift::fipo gamma=0.9785720620877001
     drop_above=4 clip.lo=0.8 clip.hi=1.2 safety=inf | -
FIPO of rows
  loss_type=fipo importance_sampling_level=sequence
  => ms_swift::grpo | - | - | loss_type
real.sh
  loss_type=real beta=0 temperature=0.6 use_vllm=true vllm_mode=server
  => ms_swift::grpo_no_scale | ms_swift::real kl.beta=0 | - | -
REAL with a KL term
  loss_type=real real_tau=0.3 scale_rewards=group
  => ms_swift::grpo_no_scale | ms_swift::real tau=0.3 | - | -
gdpo.sh
  beta=0.0 scale_rewards=gdpo num_generations=16
  => ms_swift::gdpo | ms_swift::grpo kl.beta=0 | - | -
GDPO under RLOO
  advantage_estimator=rloo scale_rewards=gdpo
  => ms_swift::gdpo | ms_swift::grpo | - | -
rloo.sh
  advantage_estimator=rloo beta=0.001 epsilon=3e-4 epsilon_high=4e-4
  => ms_swift::rloo penalty.coef=0.001 | ms_swift::grpo surrogate.low=0.0003 surrogate.high=0.0004
     kl.beta=0 | - | -
RLOO with the KL in the loss
  advantage_estimator=rloo kl_in_reward=false
  => ms_swift::rloo | ms_swift::grpo | - | -
reinforce_plus_plus.sh
  advantage_estimator=reinforce_plus_plus kl_in_reward=true beta=0.01
  => ms_swift::reinforce_plus_plus penalty.coef=0.01 | ms_swift::grpo kl.beta=0 | - | -
GRPO with the KL in the reward
  kl_in_reward=true scale_rewards=batch
  => ms_swift::grpo_batch_scale penalty.coef=0.04 | ms_swift::grpo kl.beta=0 | - | -
entropy mask
  top_entropy_quantile=0.2 log_entropy=true
  => ms_swift::grpo | ms_swift::grpo | top_entropy 0.8 | -
entropy mask and overlong filter
  top_entropy_quantile=0.2 overlong_filter=true
  => ms_swift::grpo | ms_swift::grpo | overlong, top_entropy 0.8 | -
two-sided clip
  delta=4.0
  => ms_swift::grpo | ms_swift::grpo surrogate.delta=4 | - | -
truncated importance sampling
  use_vllm=true rollout_importance_sampling_mode=token_truncate
  rollout_importance_sampling_threshold=2.0
  => ms_swift::grpo | ms_swift::grpo | ms_swift::token_truncate clip.hi=2 | -
masked rows
  use_vllm=true rollout_importance_sampling_mode=sequence_mask
  rollout_importance_sampling_threshold=3.0 log_rollout_offpolicy_metrics=true
  => ms_swift::grpo | ms_swift::grpo | ms_swift::sequence_mask gate.max=3 | -
correction without vLLM
  rollout_importance_sampling_mode=token_mask
  => ms_swift::grpo | ms_swift::grpo | - | -
off-policy rows
  use_vllm=true off_policy_sequence_mask_delta=0.5
  => ms_swift::grpo | ms_swift::grpo | ms_swift::off_policy_sequence_mask max=0.5 | -
chord.sh
  beta=0.0 chord_sft_dataset=AI-MO/NuminaMath-TIR#2000 chord_mu_peak=0.9 overlong_filter=true
  => ms_swift::grpo | - | - | chord_sft_dataset
opd_rl.sh
  teacher_model=Qwen/Qwen3-8B teacher_kl_coef=1.0 beta=0
  => ms_swift::grpo | ms_swift::grpo kl.beta=0 | - | teacher_model
SDAR
  sdar_loss_coef=0.1
  => ms_swift::grpo | ms_swift::grpo + ms_swift::sdar kl.beta=0.1 | - | -
SDAR of a frozen teacher
  teacher_model=Qwen/Qwen3-8B sdar_loss_coef=0.01 beta=0.001
  => ms_swift::grpo | ms_swift::grpo kl.beta=0.001 + ms_swift::sdar kl.beta=0.01 | - | -
RLSD
  teacher_model=Qwen/Qwen3-8B advantage_reweight=rlsd
  => ms_swift::grpo | ms_swift::grpo | - | advantage_reweight
Liger
  use_liger_kernel=true
  => ms_swift::grpo | - | - | use_liger_kernel
another algorithm
  rlhf_type=dpo beta=0.1
  => - | - | - | rlhf_type
a slip
  epsilon_hig=0.28 lora_rnak=8
  => ms_swift::grpo | ms_swift::grpo | - | epsilon_hig lora_rnak
"""

OPENRLHF = """
defaults of train_ppo_ray
  -
  => openrlhf::gae gamma=1 lambda=1 reward_clip=-10,10 penalty.coef=0.01 penalty.kl=k1 |
     openrlhf::ppo | - | -
REINFORCE++
  --V.estimator reinforce --algo.kl.init_coef 1e-3 --V.gamma 1.0
  => openrlhf::reinforce gamma=1 reward_clip=-10,10 penalty.coef=0.001 penalty.kl=k1 | openrlhf::ppo
     | - | -
REINFORCE++ with options
  --V.estimator reinforce --V.no_std_norm --algo.kl.init_coef 0 --V.gamma 0.99
  => openrlhf::reinforce gamma=0.99 reward_clip=-10,10 renorm.eps_at=none | openrlhf::ppo | - |
     -
RLOO with the KL in the reward
  --V.estimator rloo --rollout.n_samples_per_prompt 4
  => rloo | openrlhf::ppo | - | -
RLOO without KL
  --V.estimator rloo --rollout.n_samples_per_prompt 4 --algo.kl.init_coef 0
  => rloo | openrlhf::ppo | - | -
REINFORCE++-baseline
  --V.estimator reinforce_baseline --rollout.n_samples_per_prompt 8 --algo.kl.init_coef 1e-5
  --algo.kl.use_loss --algo.kl.estimator k2
  => dr_grpo renorm=tokens renorm.ddof=0 renorm.eps=1e-08 renorm.eps_at=clamp_var | openrlhf::ppo
     kl.estimator=k2 kl.beta=1e-05 kl.output.lo=-10 kl.output.hi=10 | - | -
REINFORCE++-baseline, KL in the reward
  --V.estimator reinforce_baseline --algo.kl.init_coef 1e-3
  => dr_grpo renorm=tokens renorm.ddof=0 renorm.eps=1e-08 renorm.eps_at=clamp_var | openrlhf::ppo |
     - | -
REINFORCE++-baseline, no std
  --V.estimator reinforce_baseline --algo.kl.init_coef 0 --V.no_std_norm
  => dr_grpo renorm=tokens renorm.ddof=0 renorm.eps=1e-08 renorm.eps_at=none | openrlhf::ppo | - | -
vlm_math_hybrid_engine
  --algo.kl.init_coef 0 --V.gamma 1.0 --algo.kl.use_loss --algo.kl.estimator k2 --V.estimator
  reinforce_baseline --actor.freeze_visual_encoder --ds.packing_samples
  => dr_grpo renorm=tokens renorm.ddof=0 renorm.eps=1e-08 renorm.eps_at=clamp_var | openrlhf::ppo |
     - | -
GRPO
  --V.estimator group_norm --algo.kl.init_coef 1e-3 --algo.kl.use_loss --algo.kl.estimator k3
  => grpo scale.eps=1e-09 | openrlhf::ppo kl.beta=0.001 kl.input.hi=10 kl.output.lo=-10
     kl.output.hi=10 | - | -
Dr. GRPO
  --V.estimator dr_grpo --algo.kl.init_coef 0
  => dr_grpo | openrlhf::ppo | - | -
DAPO
  --V.estimator group_norm --algo.kl.init_coef 1e-3 --algo.kl.use_loss --algo.kl.estimator k3
  --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1 --actor.eps_clip_low_high 0.2
  0.27
  => grpo scale.eps=1e-09 | openrlhf::ppo surrogate.high=0.27 kl.beta=0.001 kl.input.hi=10
     kl.output.lo=-10 kl.output.hi=10 | - | -
DAPO, overlong
  --V.estimator group_norm --algo.kl.init_coef 0 --reward.overlong_buffer_len 4096
  --reward.overlong_penalty_factor 1.0
  => grpo scale.eps=1e-09 | openrlhf::ppo | - | -
ProRL v2
  --V.estimator reinforce_baseline --algo.kl.init_coef 1e-4 --algo.kl.use_loss --algo.kl.estimator
  k2 --actor.eps_clip_low_high 0.2 0.27 --V.is_correction_level token --V.is_correction_mode mask
  --V.is_correction_threshold 0.5 5.0 --reward.stop_properly_penalty_coef 0.0
  => dr_grpo renorm=tokens renorm.ddof=0 renorm.eps=1e-08 renorm.eps_at=clamp_var | openrlhf::ppo
     surrogate.high=0.27 kl.estimator=k2 kl.beta=0.0001 kl.output.lo=-10 kl.output.hi=10 |
     openrlhf::token_mask_ratio gate.max=5 gate.min=0.5 | -
FlashREINFORCE
  --V.estimator flash_reinforce --algo.kl.init_coef 0 --V.is_correction_level seq
  --V.is_correction_gating binary_kl --V.is_correction_threshold 0.05 --actor.loss_agg_mode
  seq-mean-token-mean --train.async_enable
  => dr_grpo | openrlhf::ppo aggregate.mode=seq-mean-token-mean aggregate.over=non_empty_rows
     aggregate.row_count_eps=1e-08 | openrlhf::seq_mask_binary_kl gate.max=0.05 | -
GSPO
  --actor.policy_loss_type gspo --V.estimator group_norm --algo.kl.init_coef 0
  --actor.eps_clip_low_high 0.0003 0.0004
  => grpo scale.eps=1e-09 | openrlhf::gspo surrogate.low=0.0003 surrogate.high=0.0004 | - | -
GSPO against the sampler
  --actor.policy_loss_type gspo --V.estimator group_norm --algo.kl.init_coef 0
  --V.is_correction_level token
  => grpo scale.eps=1e-09 | openrlhf::gspo | - | -
GSPO with a KL term
  --actor.policy_loss_type gspo --V.estimator group_norm --algo.kl.use_loss --algo.kl.estimator k3
  --algo.kl.init_coef 1e-3
  => grpo scale.eps=1e-09 | openrlhf::gspo + distillation kl=k3 kl.beta=0.001 kl.against=ref
     kl.input.hi=10 kl.output.lo=-10 kl.output.hi=10 | - | -
TIS
  --V.estimator dr_grpo --algo.kl.init_coef 0 --V.is_correction_level token --V.is_correction_mode
  clip --V.is_correction_threshold 0.5 5.0
  => dr_grpo | openrlhf::ppo | openrlhf::token_clip clip.lo=0.5 clip.hi=5 | -
TIS, one number
  --V.estimator dr_grpo --algo.kl.init_coef 0 --V.is_correction_level token --V.is_correction_mode
  clip --V.is_correction_threshold 2.0
  => dr_grpo | openrlhf::ppo | openrlhf::token_clip clip.lo=0 clip.hi=2 | -
seq-mask-tis
  --V.estimator dr_grpo --algo.kl.init_coef 0 --V.is_correction_level seq
  => dr_grpo | openrlhf::ppo | openrlhf::seq_mask_ratio gate.max=5 gate.min=0.5 | -
tv
  --V.estimator dr_grpo --algo.kl.init_coef 0 --V.is_correction_level token --V.is_correction_gating
  tv --V.is_correction_threshold 0.1
  => dr_grpo | openrlhf::ppo | openrlhf::token_mask_tv gate.max=0.1 | -
a clip of rows
  --V.estimator dr_grpo --algo.kl.init_coef 0 --V.is_correction_level seq --V.is_correction_mode
  clip
  => dr_grpo | openrlhf::ppo | - | algo.advantage.is_correction_mode
a divergence with two ends
  --V.estimator dr_grpo --algo.kl.init_coef 0 --V.is_correction_level seq --V.is_correction_gating
  tv
  => dr_grpo | openrlhf::ppo | - | algo.advantage.is_correction_threshold
unbiased KL
  --V.estimator dr_grpo --algo.kl.use_loss --algo.kl.estimator k3 --algo.kl.unbiased_gradient
  => dr_grpo | openrlhf::ppo kl.gradient=importance_weighted_k2 kl.beta=0.01 kl.input.hi=10
     kl.output.lo=-10 kl.output.hi=10 | - | -
rows, with a KL term over tokens
  --V.estimator dr_grpo --algo.kl.use_loss --algo.kl.estimator k2 --actor.loss_agg_mode
  seq-mean-token-mean
  => dr_grpo | openrlhf::ppo aggregate.mode=seq-mean-token-mean aggregate.over=non_empty_rows
     aggregate.row_count_eps=1e-08 + distillation kl=k2 kl.beta=0.01 kl.against=ref kl.output.lo=-10
     kl.output.hi=10 | - | -
dual clip
  --V.estimator rloo --algo.kl.init_coef 0 --actor.dual_clip 3.0 --actor.eps_clip 0.1
  => rloo | openrlhf::ppo surrogate.low=0.1 surrogate.high=0.1 surrogate.dual=3 | - | -
entropy bonus
  --V.estimator rloo --algo.kl.init_coef 0 --actor.entropy_coef 0.001
  => rloo | openrlhf::ppo entropy.coef=0.001 entropy.mean=tokens | - | -
entropy that is logged alone
  --V.estimator rloo --algo.kl.init_coef 0 --actor.entropy_coef 0
  => rloo | openrlhf::ppo | - | -
PPO
  --V.estimator gae --V.lambd 0.95 --critic.value_clip 0.2 --algo.kl.init_coef 0.01 --critic.adam.lr
  9e-6
  => openrlhf::gae gamma=1 lambda=0.95 reward_clip=-10,10 penalty.coef=0.01 penalty.kl=k1 |
     openrlhf::ppo | - | -
PPO with an adaptive KL
  --V.estimator gae --algo.kl.target 6.0 --algo.kl.horizon 10000
  => openrlhf::gae gamma=1 lambda=1 reward_clip=-10,10 penalty.coef=0.01 penalty.kl=k1 |
     openrlhf::ppo | - | -
mixture of experts
  --V.estimator rloo --algo.kl.init_coef 0 --actor.aux_loss_coef 0.01
  => rloo | openrlhf::ppo | - | -
dashes
  --V.estimator group_norm --algo.kl.init-coef 0 --actor.eps-clip-low-high 0.2 0.28
  => grpo scale.eps=1e-09 | openrlhf::ppo surrogate.high=0.28 | - | -
names of an earlier release
  --advantage_estimator rloo --init_kl_coef 0 --eps_clip_low_high 0.2 0.27
  => openrlhf::gae gamma=1 lambda=1 reward_clip=-10,10 penalty.coef=0.01 penalty.kl=k1 |
     openrlhf::ppo | - | advantage_estimator init_kl_coef eps_clip_low_high
"""
