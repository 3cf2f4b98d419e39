"""The settings of losses and estimators as keywords, for type checkers.

Made from the library's lists: python -m gdpo._settings > gdpo/_keywords.pyi
"""
from typing import Optional, Tuple, TypedDict

import torch


class LossSettings(TypedDict, total=False):
    low: Optional[float]  # the ratio is clipped to at least 1 - low
    surrogate_low: Optional[float]  # the ratio is clipped to at least 1 - low
    high: Optional[float]  # the ratio is clipped to at most 1 + high
    surrogate_high: Optional[float]  # the ratio is clipped to at most 1 + high
    delta: Optional[float]  # upper bound of the ratio in the unclipped branch
    surrogate_delta: Optional[float]  # upper bound of the ratio in the unclipped branch
    dual: Optional[float]  # where A < 0, the loss is at most -A dual
    surrogate_dual: Optional[float]  # where A < 0, the loss is at most -A dual
    estimator: Optional[str]  # the estimate of the divergence
    kl_estimator: Optional[str]  # the estimate of the divergence
    gradient: Optional[str]  # the rule for its gradient
    kl_gradient: Optional[str]  # the rule for its gradient
    beta: Optional[float]  # coefficient of the KL term
    kl_beta: Optional[float]  # coefficient of the KL term
    against: Optional[str]  # the other policy
    kl_against: Optional[str]  # the other policy
    # upper bound of the weight of importance_weighted_k2 and clipped_importance_weighted
    max_weight: Optional[float]
    # upper bound of the weight of importance_weighted_k2 and clipped_importance_weighted
    kl_max_weight: Optional[float]
    factor: Optional[str]  # the detached factor of the term
    kl_factor: Optional[str]  # the detached factor of the term
    gate_beta: Optional[float]  # how steep the teacher's gate is, per nat
    kl_gate_beta: Optional[float]  # how steep the teacher's gate is, per nat
    mode: Optional[str]  # the formula
    aggregate_mode: Optional[str]  # the formula
    over: Optional[str]  # the count of the step that divides
    aggregate_over: Optional[str]  # the count of the step that divides
    aggregate_count_eps: Optional[float]  # added to that count
    scale: Optional[float]  # factor of the loss
    aggregate_scale: Optional[float]  # factor of the loss
    row_count_eps: Optional[float]  # added to the tokens of each row or group
    aggregate_row_count_eps: Optional[float]  # added to the tokens of each row or group
    constant: Optional[float]  # the length that divides, in tokens
    aggregate_constant: Optional[float]  # the length that divides, in tokens
    padded_width: Optional[bool]  # with constant 0, the padded width divides
    aggregate_padded_width: Optional[bool]  # with constant 0, the padded width divides
    coef: Optional[float]  # coefficient of the entropy bonus
    entropy_coef: Optional[float]  # coefficient of the entropy bonus
    mean: Optional[str]  # what the entropies are averaged over
    entropy_mean: Optional[str]  # what the entropies are averaged over
    kl: Optional[str]  # the distance to another policy
    kl_input: Optional[Tuple[float, float]]  # bounds of other - logp, in nats
    kl_output: Optional[Tuple[float, float]]  # bounds of the value, in nats
    aggregate: Optional[str]  # what the loss is divided by
    level_statistic_count_eps: Optional[float]  # added to the number of tokens
    level_bounds: Optional[Tuple[float, float]]  # bounds of that log ratio, in nats
    min_ratio: Optional[float]  # lower bound of the detached ratio
    factor_min_ratio: Optional[float]  # lower bound of the detached ratio
    max_ratio: Optional[float]  # upper bound of the detached ratio
    factor_max_ratio: Optional[float]  # upper bound of the detached ratio
    tau_pos: Optional[float]  # temperature of the gate where A > 0
    surrogate_tau_pos: Optional[float]  # temperature of the gate where A > 0
    tau_neg: Optional[float]  # temperature of the gate elsewhere
    surrogate_tau_neg: Optional[float]  # temperature of the gate elsewhere
    kind: Optional[str]  # the mean of the log ratios of a segment, or their sum
    level_statistic_kind: Optional[str]  # the mean of the log ratios of a segment, or their sum
    k_pos: Optional[float]  # power of the ratio where A >= 0
    factor_k_pos: Optional[float]  # power of the ratio where A >= 0
    lambda_pos: Optional[float]  # decay in the ratio where A >= 0
    factor_lambda_pos: Optional[float]  # decay in the ratio where A >= 0
    k_neg: Optional[float]  # power of the ratio where A < 0
    factor_k_neg: Optional[float]  # power of the ratio where A < 0
    lambda_neg: Optional[float]  # decay in the ratio where A < 0
    factor_lambda_neg: Optional[float]  # decay in the ratio where A < 0
    level_map: Optional[Tuple[float, float]]  # what is done to the log ratio of each token
    level_map_low: Optional[float]  # where A < 0, the log ratio is at least -low
    level_map_high: Optional[float]  # where A > 0, it is at most high
    positive_min: Optional[float]  # lower bound of the ratio where A is positive
    factor_positive_min: Optional[float]  # lower bound of the ratio where A is positive
    positive_max: Optional[float]  # upper bound there
    factor_positive_max: Optional[float]  # upper bound there
    negative_min: Optional[float]  # lower bound of the ratio elsewhere
    factor_negative_min: Optional[float]  # lower bound of the ratio elsewhere
    negative_max: Optional[float]  # upper bound there
    factor_negative_max: Optional[float]  # upper bound there
    threshold: Optional[float]  # an advantage above it is positive
    factor_threshold: Optional[float]  # an advantage above it is positive
    floor: Optional[float]  # the least -log p of a token, in nats, without a gradient below
    # the least -log p of a token, in nats, without a gradient below
    surrogate_floor: Optional[float]
    factor_tau_pos: Optional[float]  # temperature of the gate where A > 0
    factor_tau_neg: Optional[float]  # temperature of the gate elsewhere
    epsilon: Optional[float]  # the ratio counts from 1 / (1 + epsilon) to 1 + epsilon
    surrogate_epsilon: Optional[float]  # the ratio counts from 1 / (1 + epsilon) to 1 + epsilon
    factor_low: Optional[float]  # tokens with a ratio from 1 - low on stay
    factor_high: Optional[float]  # those up to 1 + high stay
    low_prime: Optional[float]  # where A >= 0, those up to 1 - low_prime stay too
    factor_low_prime: Optional[float]  # where A >= 0, those up to 1 - low_prime stay too
    high_prime: Optional[float]  # where A <= 0, those from 1 + high_prime on stay too
    factor_high_prime: Optional[float]  # where A <= 0, those from 1 + high_prime on stay too
    temp: Optional[float]  # the weight has the factor e^(A / temp)
    factor_temp: Optional[float]  # the weight has the factor e^(A / temp)
    decay: Optional[float]  # the weight is p (1 - decay p)
    factor_decay: Optional[float]  # the weight is p (1 - decay p)


class EstimatorSettings(TypedDict, total=False):
    of: Optional[str]  # whose spread
    scale_of: Optional[str]  # whose spread
    scale_ddof: Optional[int]  # degrees of freedom taken off n
    scale_eps: Optional[float]  # in units of the reward
    scale_eps_at: Optional[str]  # where eps stands
    over: Optional[str]  # what the second normalization runs over
    renorm_over: Optional[str]  # what the second normalization runs over
    renorm_ddof: Optional[int]  # degrees of freedom taken off n
    renorm_eps: Optional[float]  # added where eps_at says
    renorm_eps_at: Optional[str]  # where eps stands
    count_eps: Optional[float]  # added to the count that sums are divided by
    renorm_count_eps: Optional[float]  # added to the count that sums are divided by
    keep_mean: Optional[bool]  # scale about the mean and add it back
    renorm_keep_mean: Optional[bool]  # scale about the mean and add it back
    entry: Optional[str]  # a single reward that is missing
    missing_entry: Optional[str]  # a single reward that is missing
    row: Optional[str]  # a row without any reward
    missing_row: Optional[str]  # a row without any reward
    infinite: Optional[str]  # a single reward that is infinite
    missing_infinite: Optional[str]  # a single reward that is infinite
    unused: Optional[str]  # a row that is not used
    missing_unused: Optional[str]  # a row that is not used
    singleton: Optional[str]  # what a group with one used member gets
    coef: Optional[float]  # in units of the reward per nat; 0: off
    penalty_coef: Optional[float]  # in units of the reward per nat; 0: off
    reward: Optional[int]  # what carries the penalty
    penalty_reward: Optional[int]  # what carries the penalty
    renorm: Optional[str]  # the second normalization
    missing: Optional[str]  # missing and infinite rewards, unused rows
    # bounds of a reward, or of the sum that is normalized
    reward_clip: Optional[Tuple[float, float]]
    clip: Optional[Tuple[float, float]]  # bounds of the advantages
    divide_by: Optional[str]  # what happens to a mean of 0 or below
    scale_divide_by: Optional[str]  # what happens to a mean of 0 or below
    prior_dof: Optional[float]  # how many degrees of freedom the batch's variance counts for
    scale_prior_dof: Optional[float]  # how many degrees of freedom the batch's variance counts for
    equal_groups: Optional[str]  # whether groups of equal values count
    scale_equal_groups: Optional[str]  # whether groups of equal values count
    tau: Optional[float]  # the temperature, in units of the reward
    baseline_tau: Optional[float]  # the temperature, in units of the reward
    shift: Optional[float]  # added to the mean, in units of the reward
    baseline_shift: Optional[float]  # added to the mean, in units of the reward
    leave_one_out: Optional[bool]  # the mean of the others
    baseline_leave_one_out: Optional[bool]  # the mean of the others


class ContrastiveSettings(TypedDict, total=False):
    tau: Optional[float]  # temperature of the mean log ratios
    count_empty_rows: Optional[bool]  # rows without tokens stand for A <= 0 and S = 0
    estimator: Optional[str]  # the estimate of the divergence
    kl_estimator: Optional[str]  # the estimate of the divergence
    gradient: Optional[str]  # the rule for its gradient
    kl_gradient: Optional[str]  # the rule for its gradient
    beta: Optional[float]  # coefficient of the KL term
    kl_beta: Optional[float]  # coefficient of the KL term
    against: Optional[str]  # the other policy
    kl_against: Optional[str]  # the other policy
    # upper bound of the weight of importance_weighted_k2 and clipped_importance_weighted
    max_weight: Optional[float]
    # upper bound of the weight of importance_weighted_k2 and clipped_importance_weighted
    kl_max_weight: Optional[float]
    factor: Optional[str]  # the detached factor of the term
    kl_factor: Optional[str]  # the detached factor of the term
    gate_beta: Optional[float]  # how steep the teacher's gate is, per nat
    kl_gate_beta: Optional[float]  # how steep the teacher's gate is, per nat
    mode: Optional[str]  # the formula
    aggregate_mode: Optional[str]  # the formula
    over: Optional[str]  # the count of the step that divides
    aggregate_over: Optional[str]  # the count of the step that divides
    count_eps: Optional[float]  # added to that count
    aggregate_count_eps: Optional[float]  # added to that count
    scale: Optional[float]  # factor of the loss
    aggregate_scale: Optional[float]  # factor of the loss
    row_count_eps: Optional[float]  # added to the tokens of each row or group
    aggregate_row_count_eps: Optional[float]  # added to the tokens of each row or group
    constant: Optional[float]  # the length that divides, in tokens
    aggregate_constant: Optional[float]  # the length that divides, in tokens
    padded_width: Optional[bool]  # with constant 0, the padded width divides
    aggregate_padded_width: Optional[bool]  # with constant 0, the padded width divides
    kl: Optional[str]  # the distance to another policy
    kl_input: Optional[Tuple[float, float]]  # bounds of other - logp, in nats
    kl_output: Optional[Tuple[float, float]]  # bounds of the value, in nats
    aggregate: Optional[str]  # what the KL terms are divided by


class TokenAdvantagesSettings(TypedDict, total=False):
    gamma: Optional[float]  # discount of a step
    returns_gamma: Optional[float]  # discount of a step
    steps: Optional[str]  # which positions are steps
    returns_steps: Optional[str]  # which positions are steps
    coef: Optional[float]  # in units of the reward per nat; 0: off
    penalty_coef: Optional[float]  # in units of the reward per nat; 0: off
    penalty_kl_estimator: Optional[str]  # the estimate of the divergence
    gradient: Optional[str]  # the rule for its gradient
    penalty_kl_gradient: Optional[str]  # the rule for its gradient
    beta: Optional[float]  # coefficient of the KL term
    penalty_kl_beta: Optional[float]  # coefficient of the KL term
    against: Optional[str]  # the other policy
    penalty_kl_against: Optional[str]  # the other policy
    # upper bound of the weight of importance_weighted_k2 and clipped_importance_weighted
    max_weight: Optional[float]
    # upper bound of the weight of importance_weighted_k2 and clipped_importance_weighted
    penalty_kl_max_weight: Optional[float]
    factor: Optional[str]  # the detached factor of the term
    penalty_kl_factor: Optional[str]  # the detached factor of the term
    gate_beta: Optional[float]  # how steep the teacher's gate is, per nat
    penalty_kl_gate_beta: Optional[float]  # how steep the teacher's gate is, per nat
    over: Optional[str]  # what the second normalization runs over
    renorm_over: Optional[str]  # what the second normalization runs over
    kl: Optional[str]  # the KL term, whose beta and `against` are not read
    penalty_kl: Optional[str]  # the KL term, whose beta and `against` are not read
    penalty_kl_input: Optional[Tuple[float, float]]  # bounds of other - logp, in nats
    penalty_kl_output: Optional[Tuple[float, float]]  # bounds of the value, in nats
    reward_clip: Optional[Tuple[float, float]]  # bounds of the row's reward
    renorm: Optional[str]  # whitening of the advantages over the valid tokens
    returns_lambda: Optional[float]  # decay of later errors in the advantages
    lambda_returns: Optional[float]  # the same in the returns
    returns_lambda_returns: Optional[float]  # the same in the returns
    length_alpha: Optional[float]  # above 0: lambda follows from the length of the row
    returns_length_alpha: Optional[float]  # above 0: lambda follows from the length of the row
    ddof: Optional[int]  # degrees of freedom taken off n
    renorm_ddof: Optional[int]  # degrees of freedom taken off n
    eps: Optional[float]  # added where eps_at says
    renorm_eps: Optional[float]  # added where eps_at says
    eps_at: Optional[str]  # where eps stands
    renorm_eps_at: Optional[str]  # where eps stands
    count_eps: Optional[float]  # added to the count that sums are divided by
    renorm_count_eps: Optional[float]  # added to the count that sums are divided by
    keep_mean: Optional[bool]  # scale about the mean and add it back
    renorm_keep_mean: Optional[bool]  # scale about the mean and add it back
    penalty_kl_lambda: Optional[float]  # share of the teacher in the mixture
    temperature: Optional[float]  # log-probs are divided by it
    penalty_kl_temperature: Optional[float]  # log-probs are divided by it


class OutcomeAdvantagesSettings(TypedDict, total=False):
    rows_renorm_over: Optional[str]  # what the second normalization runs over
    entry: Optional[str]  # a single reward that is missing
    rows_missing_entry: Optional[str]  # a single reward that is missing
    row: Optional[str]  # a row without any reward
    rows_missing_row: Optional[str]  # a row without any reward
    infinite: Optional[str]  # a single reward that is infinite
    rows_missing_infinite: Optional[str]  # a single reward that is infinite
    unused: Optional[str]  # a row that is not used
    rows_missing_unused: Optional[str]  # a row that is not used
    singleton: Optional[str]  # what a group with one used member gets
    rows_singleton: Optional[str]  # what a group with one used member gets
    rows_penalty_coef: Optional[float]  # in units of the reward per nat; 0: off
    reward: Optional[int]  # what carries the penalty
    rows_penalty_reward: Optional[int]  # what carries the penalty
    gamma: Optional[float]  # discount of a step
    tokens_returns_gamma: Optional[float]  # discount of a step
    steps: Optional[str]  # which positions are steps
    tokens_returns_steps: Optional[str]  # which positions are steps
    tokens_penalty_coef: Optional[float]  # in units of the reward per nat; 0: off
    tokens_penalty_kl_estimator: Optional[str]  # the estimate of the divergence
    gradient: Optional[str]  # the rule for its gradient
    tokens_penalty_kl_gradient: Optional[str]  # the rule for its gradient
    beta: Optional[float]  # coefficient of the KL term
    tokens_penalty_kl_beta: Optional[float]  # coefficient of the KL term
    against: Optional[str]  # the other policy
    tokens_penalty_kl_against: Optional[str]  # the other policy
    # upper bound of the weight of importance_weighted_k2 and clipped_importance_weighted
    max_weight: Optional[float]
    # upper bound of the weight of importance_weighted_k2 and clipped_importance_weighted
    tokens_penalty_kl_max_weight: Optional[float]
    factor: Optional[str]  # the detached factor of the term
    tokens_penalty_kl_factor: Optional[str]  # the detached factor of the term
    gate_beta: Optional[float]  # how steep the teacher's gate is, per nat
    tokens_penalty_kl_gate_beta: Optional[float]  # how steep the teacher's gate is, per nat
    tokens_renorm_over: Optional[str]  # what the second normalization runs over
    placement: Optional[str]  # which steps get the advantage of the row
    rows_renorm: Optional[str]  # the second normalization
    missing: Optional[str]  # missing and infinite rewards, unused rows
    rows_missing: Optional[str]  # missing and infinite rewards, unused rows
    # bounds of a reward, or of the sum that is normalized
    rows_reward_clip: Optional[Tuple[float, float]]
    rows_clip: Optional[Tuple[float, float]]  # bounds of the advantages
    kl: Optional[str]  # the KL term, whose beta and `against` are not read
    tokens_penalty_kl: Optional[str]  # the KL term, whose beta and `against` are not read
    tokens_penalty_kl_input: Optional[Tuple[float, float]]  # bounds of other - logp, in nats
    tokens_penalty_kl_output: Optional[Tuple[float, float]]  # bounds of the value, in nats
    tokens_reward_clip: Optional[Tuple[float, float]]  # bounds of the row's reward
    tokens_renorm: Optional[str]  # whitening of the advantages over the valid tokens
    ddof: Optional[int]  # degrees of freedom taken off n
    tokens_renorm_ddof: Optional[int]  # degrees of freedom taken off n
    eps: Optional[float]  # added where eps_at says
    tokens_renorm_eps: Optional[float]  # added where eps_at says
    eps_at: Optional[str]  # where eps stands
    tokens_renorm_eps_at: Optional[str]  # where eps stands
    count_eps: Optional[float]  # added to the count that sums are divided by
    tokens_renorm_count_eps: Optional[float]  # added to the count that sums are divided by
    keep_mean: Optional[bool]  # scale about the mean and add it back
    tokens_renorm_keep_mean: Optional[bool]  # scale about the mean and add it back
    leave_one_out: Optional[bool]  # the mean of the others
    rows_baseline_leave_one_out: Optional[bool]  # the mean of the others
    tokens_returns_lambda: Optional[float]  # decay of later errors in the advantages
    lambda_returns: Optional[float]  # the same in the returns
    tokens_returns_lambda_returns: Optional[float]  # the same in the returns
    length_alpha: Optional[float]  # above 0: lambda follows from the length of the row
    # above 0: lambda follows from the length of the row
    tokens_returns_length_alpha: Optional[float]
    of: Optional[str]  # whose spread
    rows_scale_of: Optional[str]  # whose spread
    rows_scale_ddof: Optional[int]  # degrees of freedom taken off n
    rows_scale_eps: Optional[float]  # in units of the reward
    rows_scale_eps_at: Optional[str]  # where eps stands


class StepAdvantagesSettings(TypedDict, total=False):
    episode_scale_of: Optional[str]  # whose spread
    episode_scale_ddof: Optional[int]  # degrees of freedom taken off n
    episode_scale_eps: Optional[float]  # in units of the reward
    episode_scale_eps_at: Optional[str]  # where eps stands
    episode_renorm_over: Optional[str]  # what the second normalization runs over
    episode_missing_entry: Optional[str]  # a single reward that is missing
    episode_missing_row: Optional[str]  # a row without any reward
    episode_missing_infinite: Optional[str]  # a single reward that is infinite
    episode_missing_unused: Optional[str]  # a row that is not used
    episode_singleton: Optional[str]  # what a group with one used member gets
    episode_penalty_coef: Optional[float]  # in units of the reward per nat; 0: off
    episode_penalty_reward: Optional[int]  # what carries the penalty
    step_scale_of: Optional[str]  # whose spread
    step_scale_ddof: Optional[int]  # degrees of freedom taken off n
    step_scale_eps: Optional[float]  # in units of the reward
    step_scale_eps_at: Optional[str]  # where eps stands
    step_renorm_over: Optional[str]  # what the second normalization runs over
    step_missing_entry: Optional[str]  # a single reward that is missing
    step_missing_row: Optional[str]  # a row without any reward
    step_missing_infinite: Optional[str]  # a single reward that is infinite
    step_missing_unused: Optional[str]  # a row that is not used
    step_singleton: Optional[str]  # what a group with one used member gets
    step_penalty_coef: Optional[float]  # in units of the reward per nat; 0: off
    step_penalty_reward: Optional[int]  # what carries the penalty
    omega: Optional[float]  # weight of the steps
    gamma: Optional[float]  # discount of a step
    pool_states: Optional[bool]  # compare states over all tasks
    episode_renorm: Optional[str]  # the second normalization
    episode_missing: Optional[str]  # missing and infinite rewards, unused rows
    # bounds of a reward, or of the sum that is normalized
    episode_reward_clip: Optional[Tuple[float, float]]
    episode_clip: Optional[Tuple[float, float]]  # bounds of the advantages
    step_renorm: Optional[str]  # the second normalization
    step_missing: Optional[str]  # missing and infinite rewards, unused rows
    # bounds of a reward, or of the sum that is normalized
    step_reward_clip: Optional[Tuple[float, float]]
    step_clip: Optional[Tuple[float, float]]  # bounds of the advantages


class TokenBaselineSettings(TypedDict, total=False):
    eps: Optional[float]  # added to the sum of the weights
    place: Optional[str]  # which tokens share a baseline
    members: Optional[str]  # which rows a group has
    tail: Optional[str]  # what the end of the longest row gets


class ValueLossSettings(TypedDict, total=False):
    clip: Optional[float]  # how far a value may move
    half: Optional[bool]  # the squares are halved
    mode: Optional[str]  # the formula
    aggregate_mode: Optional[str]  # the formula
    over: Optional[str]  # the count of the step that divides
    aggregate_over: Optional[str]  # the count of the step that divides
    count_eps: Optional[float]  # added to that count
    aggregate_count_eps: Optional[float]  # added to that count
    scale: Optional[float]  # factor of the loss
    aggregate_scale: Optional[float]  # factor of the loss
    row_count_eps: Optional[float]  # added to the tokens of each row or group
    aggregate_row_count_eps: Optional[float]  # added to the tokens of each row or group
    constant: Optional[float]  # the length that divides, in tokens
    aggregate_constant: Optional[float]  # the length that divides, in tokens
    padded_width: Optional[bool]  # with constant 0, the padded width divides
    aggregate_padded_width: Optional[bool]  # with constant 0, the padded width divides
    delta: Optional[float]  # from where on the loss is linear
    aggregate: Optional[str]  # what the loss is divided by


class WhiteningSettings(TypedDict, total=False):
    over: Optional[str]  # what the second normalization runs over
    ddof: Optional[int]  # degrees of freedom taken off n
    eps: Optional[float]  # added where eps_at says
    eps_at: Optional[str]  # where eps stands
    count_eps: Optional[float]  # added to the count that sums are divided by
    keep_mean: Optional[bool]  # scale about the mean and add it back


class PidSettings(TypedDict, total=False):
    form: str  # the control law
    kp: float  # proportional gain
    ki: float  # integral gain, or the rate of ascent
    kd: float  # derivative gain
    p_ema: float  # average of the error: share of the old average
    p_start: str  # what that average starts from
    d_ema: float  # average of the measurement: share of the old average
    d_delay: int  # updates over which the derivative takes the difference
    d_start: str  # what the average of the measurement starts from
    integral_max: float  # upper bound of the integral
    anti_windup: str  # what keeps the integral from growing at a bound
    lambda_init: float  # multiplier before the first update
    lambda_max: float  # upper bound of the multiplier
    beta1: float  # adam: share of the old first moment
    beta2: float  # adam, rms_prop: share of the old second moment
    adam_eps: float  # adam, rms_prop: added to the root of the second moment


class DiagnoseSettings(TypedDict, total=False):
    first_step_ratio: float  # how far a ratio may typically be off 1 in the first step
    clip_fraction_min: float  # least share of clipped tokens
    clip_fraction_max: float  # largest share of clipped tokens
    near_ratio: float  # how far off 1 a large share of clips is judged
    positive_logp: float  # largest share of rows that begin with a positive log-prob
    dead_groups: float  # largest share of groups without a spread
    truncated: float  # the share of truncated completions that counts as all
    entropy_floor: float  # least mean entropy of a token
    first_entropy: float  # that of the first step of the run; 0: not known
    entropy_share: float  # the least share of it that is left
    rollout_kl: float  # largest KL of the sampling engine from the trainer
    mult_prob_error: float  # largest factor between the probabilities of engine and trainer
    effective_sample_size: float  # least effective share of the tokens under the weights
    dropped: float  # largest share of tokens that corrections take out


class RunningMomentsSettings(TypedDict, total=False):
    decay: float  # how much the past counts after a step
    eps: float  # added to the std
    ddof: int  # subtracted from the weight in the variance
    bound: float  # the largest magnitude of a shaped reward


class EmaBaselineSettings(TypedDict, total=False):
    decay: float  # how much the average keeps
    start: float  # the baseline before the first reward


class ReturnScaleSettings(TypedDict, total=False):
    gamma: float  # the discount
    eps: float  # added to the variance
    prior: float  # weight of mean 0 and variance 1 before the first
    bound: float  # the largest magnitude of a shaped reward


class ArraysBesideLogits(TypedDict, total=False):
    advantages: Optional[torch.Tensor]
    token_advantages: Optional[torch.Tensor]
    old_logp: Optional[torch.Tensor]
    ref_logp: Optional[torch.Tensor]
    rollout_logp: Optional[torch.Tensor]
    teacher_logp: Optional[torch.Tensor]
    mask: Optional[torch.Tensor]
    completion_mask: Optional[torch.Tensor]
    offsets: Optional[torch.Tensor]
    segments: Optional[torch.Tensor]
    weights: Optional[torch.Tensor]
    kl_weights: Optional[torch.Tensor]
    entropy_weights: Optional[torch.Tensor]
    row_weights: Optional[torch.Tensor]
    group_tokens: Optional[torch.Tensor]
    entropies: Optional[torch.Tensor]
    tags: Optional[torch.Tensor]
    truncated: Optional[torch.Tensor]
    level_log_weights: Optional[torch.Tensor]
