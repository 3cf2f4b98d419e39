"""gdpo.jax beside gdpo.numpy: the same bits, compiled and not, and gradients that JAX asks for.

Comparisons are of bits, because the calls of gdpo.numpy compute the numbers. Derivatives by finite
differences are of float64: central ones with a step of 1e-6 are exact to about 1e-9 of the loss,
and are held to 1e-6 of the largest.
"""
import inspect

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import gdpo  # noqa: E402
import gdpo.jax as gj  # noqa: E402
import gdpo.numpy as gn  # noqa: E402

ROWS, WIDTH = 8, 21


def batch(seed=0, dtype=np.float32, poison=True):
    """Arrays of tokens with NaN where the mask is 0, and rewards of rows."""
    g = np.random.default_rng(seed)
    mask = g.random((ROWS, WIDTH)) > 0.25
    logp = g.normal(-1.5, 0.3, mask.shape)
    given = {"logp": logp, "old_logp": logp + g.normal(0, 0.3, mask.shape),
             "ref_logp": logp + g.normal(0, 0.3, mask.shape),
             "entropies": g.random(mask.shape)}
    given = {name: np.where(mask | (not poison), a, np.nan).astype(dtype)
             for name, a in given.items()}
    return {**given, "mask": mask, "advantages": g.normal(size=ROWS).astype(dtype)}


def in_jax(arrays):
    return {name: jnp.asarray(array) for name, array in arrays.items()}


def same(ours, want):
    """The bits, in the type that JAX has without x64."""
    ours, want = (jax.tree.leaves(each) for each in (ours, want))
    for mine, other in zip(ours, want, strict=True):
        assert isinstance(mine, jax.Array)
        other = np.asarray(other)
        if other.dtype.itemsize == 8 and not jax.config.jax_enable_x64:
            other = other.astype({"f": np.float32, "i": np.int32}[other.dtype.kind])
        assert mine.dtype == other.dtype and mine.shape == other.shape
        assert np.asarray(mine).tobytes() == other.tobytes()


def as_it_is_and_compiled(call):
    return call, jax.jit(call)


@pytest.mark.parametrize("dtype", (np.float32, jnp.bfloat16), ids=("float32", "bfloat16"))
def test_rows(dtype):
    """Advantages of a jax.Array, in and out of jit, with their report."""
    rewards = np.random.default_rng(0).random((24, 2)).astype(dtype)
    for name in ("gdpo", "trl::grpo", "verl::rloo", "skyrl::maxrl"):
        want = gn.advantages(rewards, estimator=name, group_size=4, weights=[1.0, 0.5], report=True)
        for call in as_it_is_and_compiled(lambda r: gj.advantages(
                r, estimator=name, group_size=4, weights=[1.0, 0.5], report=True)):
            got = call(jnp.asarray(rewards))
            same(got, want)
            assert type(got.report) is gdpo.Report and got.report["rows"] == 24
            assert set(got.report.to_dict()) == set(want.report.to_dict())
    ids = jnp.arange(24) // 3
    for call in as_it_is_and_compiled(lambda r, i: gj.advantages(r, group_ids=i)):
        same(call(jnp.asarray(rewards), ids), gn.advantages(rewards, group_ids=np.asarray(ids)))
    same(gj.advantages([1.0, None, 0.5, 1.0], group_ids=list("abab")),
         gn.advantages([1.0, None, 0.5, 1.0], group_ids=list("abab")))
    episodes = list("aabbccddeeff") * 2
    same(jax.jit(lambda r: gj.step_advantages(r, group_size=24, episode_ids=episodes,
                                              state_ids=ids))(jnp.asarray(rewards)),
         gn.step_advantages(rewards, group_size=24, episode_ids=episodes,
                            state_ids=np.asarray(ids)))


def test_whole_ids():
    """Ids of NumPy stay whole where JAX has no int64; so do numbers that it would narrow."""
    ids = np.array([1, 2**32 + 1] * 4)
    for call in as_it_is_and_compiled(lambda r: gj.advantages(r, group_ids=ids)):
        same(call(jnp.arange(8.0) ** 2), gn.advantages(np.arange(8.0, dtype="f4") ** 2,
                                                       group_ids=ids))


def test_tokens():
    """Advantages and returns of tokens, whitening and counts."""
    given, ids = batch(1, poison=False), np.arange(ROWS) // 4
    of_gae = {"values": given["logp"], "mask": given["mask"], "row_rewards": given["advantages"]}
    want = gn.token_advantages(**of_gae, gamma=0.9)
    for call in as_it_is_and_compiled(lambda a: gj.token_advantages(**a, gamma=0.9)):
        got = call(in_jax(of_gae))
        same(got, want)
        assert type(got) is gj.AdvantagesAndReturns
    want = gn.outcome_advantages(given["advantages"], group_size=4, mask=given["mask"], report=True)
    for call in as_it_is_and_compiled(lambda r, m: gj.outcome_advantages(
            r, group_size=4, mask=m, report=True)):
        same(call(jnp.asarray(given["advantages"]), jnp.asarray(given["mask"])), want)
    for arguments in ({}, {"group_size": 4}, {"group_ids": ids}, {"given": 2.0}):
        for call in as_it_is_and_compiled(lambda m: gj.count(mask=m, **arguments)):
            same(call(jnp.asarray(given["mask"])), gn.count(mask=given["mask"], **arguments))
    for call in as_it_is_and_compiled(lambda m: gj.count_group_tokens(mask=m, group_size=4)):
        same(call(jnp.asarray(given["mask"])),
             gn.count_group_tokens(mask=given["mask"], group_size=4))
    for call in as_it_is_and_compiled(lambda v, m: gj.whiten(v, m, name="verl::masked_whiten")):
        same(call(jnp.asarray(given["logp"]), jnp.asarray(given["mask"])),
             gn.whiten(given["logp"], given["mask"], name="verl::masked_whiten"))


def check_loss(name, dtype, compiled):
    """Loss, gradient and metrics; with NaN at masked tokens."""
    given = batch(2, dtype)
    given["teacher_logp"] = given["rollout_logp"] = given["ref_logp"]
    settings = {"constant": 5} if name.endswith("dr_grpo") else {}
    if any(setting.name == "entropy.coef" for setting in gn.loss_settings(name)):
        settings["entropy_coef"] = 0.1
    of_numpy, of_jax = (door.PolicyLoss(name, **settings) for door in (gn, gj))
    counts = gn.count(mask=given["mask"], given=40.0)
    want = of_numpy(**given, counts=counts)
    by = ("logp", "entropies") if want.by_entropies is not None else ("logp",)
    others = {key: array for key, array in in_jax(given).items() if key not in by}
    leaves = {key: jnp.asarray(given[key]) for key in by}

    def loss(leaves):
        return of_jax(**leaves, **others, counts=counts)
    how = jax.jit if compiled else lambda call: call
    (value, metrics), gradients = how(jax.value_and_grad(loss, has_aux=True))(leaves)
    same((value, metrics), (want.loss, want.metrics))
    for key, gradient in zip(by, want[1:]):
        same(gradients[key], gradient.astype(dtype))
    assert type(metrics) is gdpo.Metrics
    assert metrics.to_dict("a/").keys() == want.metrics.to_dict("a/").keys()
    same(how(loss)(leaves), (want.loss, want.metrics))  # without a gradient


def test_every_loss():
    for name in gn.losses():
        check_loss(name, np.float32, compiled=False)


@pytest.mark.parametrize("dtype", (np.float32, jnp.bfloat16), ids=("float32", "bfloat16"))
@pytest.mark.parametrize("name", ("dapo", "gspo", "sapo", "verl::vanilla", "trl::dapo"))
def test_compiled_losses(name, dtype):
    check_loss(name, dtype, compiled=True)


def test_other_losses():
    """Those of groups and of a critic."""
    given = batch(3)
    groups = {"group_ids": list("aabbaabb")}
    counts = gn.count(mask=given["mask"], **groups)
    want = gn.ContrastiveLoss()(**given, counts=counts, **groups)
    others = {name: array for name, array in in_jax(given).items() if name != "logp"}
    for call in as_it_is_and_compiled(jax.value_and_grad(
            lambda x: gj.ContrastiveLoss()(x, **others, counts=counts, **groups), has_aux=True)):
        (value, metrics), gradient = call(jnp.asarray(given["logp"]))
        same((value, metrics, gradient), (want.loss, want.metrics, want.by_logp))
    of_values = {"old_values": given["old_logp"], "returns": given["ref_logp"],
                 "mask": given["mask"]}
    want = gn.ValueLoss(clip=0.2)(given["logp"], **of_values, counts=counts)
    for call in as_it_is_and_compiled(jax.value_and_grad(
            lambda x, o: gj.ValueLoss(clip=0.2)(x, **o, counts=counts), has_aux=True)):
        (value, metrics), gradient = call(jnp.asarray(given["logp"]), in_jax(of_values))
        same((value, metrics, gradient), (want.loss, want.metrics, want.by_values))
        assert type(metrics) is gdpo.ValueMetrics
        assert metrics.explained_variance() == pytest.approx(want.metrics.explained_variance())


def test_finite_differences():
    """Of a compiled function that multiplies the loss, in float64."""
    with jax.enable_x64(True):
        given = in_jax(batch(4, np.float64, poison=False))
        counts = gj.count(mask=given["mask"])
        assert counts.dtype == jnp.float64
        logp, entropies = given.pop("logp"), given.pop("entropies")
        loss = gj.PolicyLoss("dapo", beta=0.1, entropy_coef=0.2)

        @jax.jit
        def multiplied(x, e):
            value, metrics = loss(jnp.sin(x), **given, entropies=e, counts=counts)
            return 3 * value + metrics.result[0] * 0
        gradients = jax.jit(jax.grad(multiplied, argnums=(0, 1)))(logp, entropies)
        assert gradients[0].dtype == jnp.float64
        step, scale = 1e-6, float(jnp.abs(gradients[0]).max())
        for row, token in ((0, 0), (3, 7), (7, 20), (5, 2)):
            at = jnp.zeros_like(logp).at[row, token].set(step)
            for number, moved in enumerate(((at, 0), (0, at))):
                slope = (multiplied(logp + moved[0], entropies + moved[1]) -
                         multiplied(logp - moved[0], entropies - moved[1])) / (2 * step)
                assert float(slope) == pytest.approx(float(gradients[number][row, token]),
                                                     abs=1e-6 * scale)


def test_constants():
    """Everything but the log-probs is a constant, and so are advantages."""
    given = in_jax(batch(5, poison=False))
    counts = gj.count(mask=given["mask"])
    others = ("old_logp", "ref_logp", "advantages")

    def loss(arrays):
        return gj.PolicyLoss("dapo", beta=0.1)(**{**given, **arrays}, counts=counts).loss
    for call in as_it_is_and_compiled(jax.grad(loss)):
        gradients = call({name: given[name] for name in (*others, "logp")})
        assert all(not gradients[name].any() for name in others) and gradients["logp"].any()
    for call in as_it_is_and_compiled(jax.grad(
            lambda r: (gj.advantages(r, group_size=4) * jnp.arange(8.0)).sum() + r.sum())):
        same(call(given["advantages"]), np.ones(8, np.float32))
    for call in as_it_is_and_compiled(jax.grad(
            lambda x: jax.grad(lambda y: loss({"logp": y}))(x).sum())):
        with pytest.raises(ValueError, match="callbacks do not support JVP"):
            call(given["logp"])  # no second derivative, in particular not 0
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(lambda x: loss({"logp": x}), (given["logp"],), (given["logp"],))


def test_vmap():
    """One example after the other: values, gradients and metrics of each."""
    batches = [batch(seed) for seed in (6, 7, 8)]
    stacked = {name: jnp.stack([jnp.asarray(b[name]) for b in batches]) for name in batches[0]}
    loss = gj.PolicyLoss("gspo")

    def of_one(given):
        given = dict(given)
        logp = given.pop("logp")
        counts = gj.count(mask=given["mask"])
        return jax.value_and_grad(lambda x: loss(x, **given, counts=counts), has_aux=True)(logp)
    for call in as_it_is_and_compiled(jax.vmap(of_one)):
        (values, metrics), gradients = call(stacked)
        for number, given in enumerate(batches):
            want = gn.PolicyLoss("gspo")(**given, counts=gn.count(mask=given["mask"]))
            same((values[number], metrics.result[number], gradients[number]),
                 (want.loss, want.metrics, want.by_logp))
    rewards = jnp.arange(24.0).reshape(3, 8) ** 2
    same(jax.vmap(lambda r: gj.advantages(r, group_size=4))(rewards),
         np.stack([gn.advantages(np.asarray(r), group_size=4) for r in rewards]))


def test_shard_map():
    """Results differ by device as their arguments do: JAX wants a sum over the devices, and takes
    the gradient; one device has all the types."""
    given = in_jax(batch(11, poison=False))
    counts, logp = gn.count(mask=np.asarray(given["mask"])), given.pop("logp")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("rows",))
    P = jax.sharding.PartitionSpec

    def mapped(of_device):
        return jax.jit(jax.shard_map(of_device, mesh=mesh, in_specs=P("rows"), out_specs=P()))

    def loss(x, others):
        return gj.PolicyLoss("dapo")(x, **others, counts=counts).loss
    summed = mapped(lambda x, others: jax.lax.psum(loss(x, others), "rows"))
    same(jax.grad(summed)(logp, given), jax.grad(loss)(logp, given))
    with pytest.raises(ValueError, match="out_specs"):
        mapped(loss)(logp, given)


def test_a_compiled_function_holds_its_arrays():
    """As they were when JAX traced it, whatever becomes of their memory, as JAX does."""
    given = batch(12, poison=False)
    logp, counts = jnp.asarray(given.pop("logp")), gn.count(mask=given["mask"])
    rewards, columns, weights = np.arange(16.0).reshape(8, 2), np.arange(8.0), [1.0, 0.5]
    calls = (jax.jit(lambda x: gj.PolicyLoss("dapo")(x, **given, counts=counts)),
             jax.jit(lambda x: gj.advantages(jnp.asarray(rewards) + 0 * x[0, 0], group_size=4,
                                             weights=weights, penalty=columns,
                                             gates=iter([(0, 1, 6.5)]))))
    before = [call(logp) for call in calls]
    for array in (*given.values(), counts, columns):
        array[...] = 0
    weights[1] = 3.0
    for call, first in zip(calls, before):
        same(call(logp), first)


def test_double_precision_of_numpy():
    """Arrays of NumPy are float32 where JAX has no float64, all of them."""
    given = batch(13, np.float64, poison=False)
    counts = gn.count(mask=given["mask"])
    narrow = {name: array.astype("f4") if array.dtype == "f8" else array
              for name, array in given.items()}
    for kind in (lambda array: array, np.ndarray.tolist):
        got = gj.PolicyLoss("dapo")(**{n: kind(a) for n, a in given.items()}, counts=counts)
        want = gn.PolicyLoss("dapo")(**{**narrow, "advantages": given["advantages"]}, counts=counts)
        same(got, (want.loss, want.metrics))
    got, want = (door.ValueLoss(clip=0.2)(
        of["logp"], old_values=of["old_logp"], returns=of["ref_logp"], mask=of["mask"],
        row_weights=np.linspace(0.1, 1, ROWS), counts=counts)
        for door, of in ((gj, given), (gn, narrow)))
    same(got, (want.loss, want.metrics))


def test_metrics_are_pytrees():
    """They go through compiled functions and merge; float32 without x64."""
    given = in_jax(batch(9))
    counts = gn.count(mask=np.asarray(given["mask"]))
    halves = [{name: array[half] for name, array in given.items()}
              for half in (slice(0, 4), slice(4, 8))]
    call = jax.jit(lambda half: gj.PolicyLoss("dapo")(**half, counts=counts).metrics)
    first, second = map(call, halves)
    assert first.result.dtype == jnp.float32
    merged = first.merge(second)
    assert merged["ratio.count"] == int(given["mask"].sum()) and merged.to_dict("train/")
    tree = jax.tree.structure(first)
    assert tree.num_leaves == 1 and type(jax.tree.unflatten(tree, [0])) is gdpo.Metrics
    doubled = jax.tree.map(lambda x: 2 * x, first)
    assert doubled["loss"] == 2 * first["loss"] and repr(doubled).startswith("gdpo.Metrics(")


def test_mistakes():
    """A ValueError; from what is compiled JAX's error with the same words."""
    rewards, given = jnp.ones((8, 2)), in_jax(batch(10))
    counts = gj.count(mask=given["mask"])
    for call in as_it_is_and_compiled(lambda r: gj.advantages(r, group_size=3)):
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError),
                           match="gdpo::advantages: groups: given 8 rows"):
            jax.block_until_ready(call(rewards))
    for wrong, words in (({"old_logp": jnp.ones(3)}, "batch.old_logp: "),
                         ({"logp": jnp.ones((8, 21), int)}, "batch.logp: given int32"),
                         ({"logp": None}, "logp: given None"),
                         ({"advantages": "x"}, "advantages:")):
        with pytest.raises(ValueError, match=f"^gdpo::PolicyLoss: {words}"):
            gj.PolicyLoss("dapo")(**{**given, **wrong}, counts=counts)
    with pytest.raises(ValueError, match="gdpo::runtime::.*dapoo|dapoo.*did you mean"):
        gj.PolicyLoss("dapoo")
    with pytest.raises(ValueError, match="gdpo::token_advantages: "):
        gj.token_advantages(values=given["logp"])
    with pytest.raises(TypeError, match="positional"):
        gj.advantages(rewards, 3)
    with pytest.raises(TypeError, match="rewards"):
        gj.advantages(rewards, rewards=rewards)
    with pytest.raises(ValueError, match="group_sizes"):
        gj.advantages(rewards, group_sizes=3)


def test_mistakes_in_what_is_traced():
    """They are told when JAX traces, in words; a count of one's own may be traced."""
    rewards, mask = jnp.ones((8, 2)), jnp.ones((8, 3))
    for call, words in (
            (lambda x: gj.advantages(rewards, group_size=x), "advantages: group_size: given a tr"),
            (lambda x: gj.advantages(rewards, group_size=4, weights=[x, 1]), "weights: given a tr"),
            (lambda x: gj.advantages(rewards, group_size=4, scale_eps=x), "scale_eps: given a tr"),
            (lambda x: gj.advantages(None, group_ids=x), "advantages: rewards: given None"),
            (lambda x: gj.whiten(None, x), "whiten: values: given None"),
            (lambda x: gj.PolicyLoss("dapo")(mask * x, counts=None), "PolicyLoss: counts: given N"),
            (lambda x: gj.PolicyLoss("dapo")(mask * x, counts=[x, 8, [8], 0]), "counts: "),
            (lambda x: gj.PolicyLoss("dapo")(mask * x, advantages="x", counts=[x, 8, 8, 0]),
             "PolicyLoss: advantages: given dtype <U1"),
            (lambda x: gj.step_advantages(rewards, group_size=8, episode_ids=None, state_ids=x),
             "episode_ids: given None")):
        with pytest.raises(ValueError, match=words):
            jax.jit(call)(1)
    with pytest.raises(TypeError, match="'rewards'"):
        jax.jit(lambda m: gj.outcome_advantages(mask=m, group_size=4))(mask)
    for name in ("valid", "baseline", "penalty"):  # None is a reward that is missing, and no other
        with pytest.raises(ValueError, match=f"{name}: given a list"):
            gj.advantages([1.0, 2.0], group_size=2, **{name: [1.0, None]})
    with pytest.raises(ValueError, match="values: given a list"):
        gj.whiten([1.0, None])
    same(jax.jit(lambda x: gj.count(mask=mask, given=x))(3),
         gn.count(mask=np.ones((8, 3)), given=3.0))
    counts, ones = np.array([24.0, 8, 8, 0]), np.ones(8)
    same(jax.jit(lambda x: gj.PolicyLoss("dapo")(
        mask * x, advantages=ones, counts=[x + 23, 8, 8, 0]).loss)(1.0),
         gn.PolicyLoss("dapo")(np.ones((8, 3), "f4"), advantages=ones, counts=counts).loss)
    same(jax.jit(lambda x: gj.advantages([x, 1.0, None], group_size=3))(2.0),
         gn.advantages(np.array([2.0, 1.0, np.nan], "f4"), group_size=3))


def test_numpy_says_who_takes_traced_arrays():
    with pytest.raises(ValueError, match="gdpo::count: logp: given an array that JAX traces; "
                                         r"needed: .*gdpo\.jax"):
        jax.jit(lambda x: gn.count(logp=x))(jnp.zeros((2, 3)))


def test_large_arrays():
    """Callbacks of many megabytes end, with the result of gdpo.numpy."""
    logp = np.random.default_rng(0).normal(-1.5, 0.3, (256, 4096)).astype(np.float32)
    ones = np.ones(256, np.float32)
    call = jax.jit(jax.grad(lambda x: gj.PolicyLoss("dapo")(
        x * 1, old_logp=x + 0.1, advantages=ones, counts=gj.count(logp=x)).loss))
    want = gn.PolicyLoss("dapo")(logp, old_logp=logp + np.float32(0.1), advantages=ones,
                                 counts=gn.count(logp=logp))
    same(call(jnp.asarray(logp)), want.by_logp)


def test_same_names_and_keywords():
    """Each call of gdpo.numpy is here, with its arguments and its text."""
    without = {"PolicyLossAndGradients", "ContrastiveLossAndGradient", "ValueLossAndGradient"}
    assert set(gn.__all__) - without <= set(gj.__all__)
    for name in set(gn.__all__) - without:
        ours, other = getattr(gj, name), getattr(gn, name)
        if callable(ours) and ours is not other and not issubclass(type(ours), type):
            assert inspect.signature(ours) == inspect.signature(other)
            assert "gdpo.jax." in ours.__doc__ and "gdpo.numpy" not in ours.__doc__
