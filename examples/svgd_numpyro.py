"""A hierarchical NumPyro model by SVGD and by NUTS: `python examples/svgd_numpyro.py`."""

import argparse
import time
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax.flatten_util import ravel_pytree
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import initialize_model
from tqdm import trange

from jaxgauss import ksd_squared, median_tau
from jaxgauss.optax import scale_by_svgd

# Rubin, "Estimation in Parallel Randomized Experiments", 1981: points that coaching added in eight schools' tests
EFFECTS, ERRORS = np.array([[28.0, 8, -3, 7, -1, 1, 18, 12], [15, 10, 16, 11, 9, 11, 10, 18]])
TAUS = (0.01, 0.03, 0.1, 0.3, "median")


@numpyro.handlers.reparam(config={"effect": LocScaleReparam(centered=0)})
def eight_schools(effects, errors):
    """Every school has an effect of its own; how much they differ is inferred as well."""
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    spread = numpyro.sample("spread", dist.HalfCauchy(5))
    with numpyro.plate("school", len(effects)):
        effect = numpyro.sample("effect", dist.Normal(mean, spread))
        numpyro.sample("measured", dist.Normal(effect, errors), obs=effects)


def by_svgd(potential, particles, tau, steps):
    """Particles in unconstrained space, a pytree, after so many steps; the potential is minus the log-density."""
    optimizer = optax.chain(scale_by_svgd(tau), optax.adam(optax.cosine_decay_schedule(0.1, steps)))
    state = optimizer.init(particles)

    @jax.jit
    def step(particles, state):
        gradients = jax.grad(lambda x: jax.vmap(potential)(x).sum())(particles)
        updates, state = optimizer.update(gradients, state, particles)
        return optax.apply_updates(particles, updates), state

    for _ in trange(steps, desc=f"τ = {tau}", unit="step", mininterval=0.5):
        particles, state = step(particles, state)
    return jax.block_until_ready(particles)


def compared(ours, theirs):
    """Of the mean, the logarithm of the spread and every effect: shifts in standard deviations, and ratios of those."""
    ours, theirs = (np.c_[x["mean"], np.log(x["spread"]), x["effect"]] for x in (ours, theirs))
    return np.abs(ours.mean(0) - theirs.mean(0)) / theirs.std(0), ours.std(0) / theirs.std(0)


def main(particles=2000, steps=1000, samples=2500, picture="outputs/svgd_numpyro.png"):
    """Move particles by several bandwidths, choose one by the kernel Stein discrepancy, and compare with NUTS."""
    start = time.perf_counter()
    kernel = NUTS(eight_schools, target_accept_prob=0.95)
    mcmc = MCMC(kernel, num_warmup=samples, num_samples=samples, num_chains=4, chain_method="vectorized")
    mcmc.run(jax.random.key(0), EFFECTS, ERRORS)
    nuts = jax.block_until_ready(mcmc.get_samples())
    print(f"NUTS, 4 chains of {samples} samples: {time.perf_counter() - start:.0f} seconds")
    model = initialize_model(jax.random.key(0), eight_schools, model_args=(EFFECTS, ERRORS))
    zeros, unravel = ravel_pytree(model.param_info.z)
    x = jax.random.normal(jax.random.key(1), (particles, len(zeros)))
    scores = jax.jit(jax.vmap(jax.grad(lambda x: -model.potential_fn(unravel(x)))))
    constrained = jax.jit(jax.vmap(model.postprocess_fn))
    found = {}
    print(f"SVGD, {particles} particles:\n     τ   seconds     KSD²   off by, at most   sd, SVGD / NUTS")
    for tau in TAUS:
        start = time.perf_counter()
        moved = by_svgd(model.potential_fn, jax.vmap(unravel)(x), tau, steps)
        seconds = time.perf_counter() - start
        flat = jax.vmap(lambda particle: ravel_pytree(particle)[0])(moved)
        ksd = float(ksd_squared(flat, scores(flat), median_tau(x), kernel="imq"))  # does not know NUTS
        at = 2 * np.log(particles) * float(median_tau(flat)) if tau == "median" else tau
        found[tau] = at, ksd, constrained(moved)
        shift, ratio = compared(found[tau][2], nuts)
        print(f"{tau:>6} {seconds:>9.0f} {ksd:>8.5f} {shift.max():>14.2f} sd   {ratio.min():.2f} to {ratio.max():.2f}")
    best = min(found, key=lambda tau: found[tau][1])
    of_svgd, of_nuts = (np.quantile(x["spread"], 0.95) for x in (found[best][2], nuts))
    print(f"least KSD²: τ = {best}; 95% quantile of the spread: {of_svgd:.1f}, by NUTS {of_nuts:.1f}")
    draw(found, best, nuts, Path(picture))
    return found, best, nuts


def draw(found, best, nuts, path):
    """Effects, the funnel of the best bandwidth, and what every bandwidth does to KSD and standard deviations."""
    fig, axes = plt.subplot_mosaic("enfk;enfs", figsize=(15, 4.6), width_ratios=[1.3, 1, 1, 1], layout="constrained")
    axes["f"].sharex(axes["n"])
    axes["f"].sharey(axes["n"])
    axes["s"].sharex(axes["k"])
    ours, at = found[best][2], np.arange(len(EFFECTS))
    axes["e"].errorbar(at - 0.25, EFFECTS, ERRORS, fmt="o", ms=3, lw=1, color="0.75", label="measured ± error")
    for key, x, label, offset, color in (("n", nuts, "NUTS", 0, "0.35"), ("f", ours, f"SVGD, τ = {best}", 0.25, "C0")):
        mean, sd = x["effect"].mean(0), x["effect"].std(0)
        axes["e"].errorbar(at + offset, mean, sd, fmt="o", ms=3, lw=1.6, color=color, label=f"{label}, mean ± sd")
        shown = slice(None, None, max(1, len(x["mean"]) // len(ours["mean"])))  # as many of both
        axes[key].scatter(x["spread"][shown], x["effect"][shown, 0], s=6, lw=0, alpha=0.5, color=color)
        axes[key].set(title=label, xscale="log", xlabel="spread between schools", ylabel="effect in school A")
    axes["e"].set(title="effects of coaching", xlabel="school", ylabel="points", xticks=at, xticklabels="ABCDEFGH")
    axes["s"].axhline(1, color="0.45", lw=1)
    for tau, (at, ksd, values) in found.items():
        ratio, color = compared(values, nuts)[1], "C3" if tau == "median" else "C0"
        axes["k"].loglog(at, ksd, "o", color=color, label={"median": "median rule", best: "fixed τ"}.get(tau))
        axes["s"].plot(np.full_like(ratio, at), ratio, "_", ms=10, color=color)
    axes["k"].set(title="bandwidths", ylabel="KSD²")
    axes["s"].set(xlabel="τ", ylabel="sd, SVGD / NUTS\n(each parameter)")
    axes["k"].tick_params(labelbottom=False)
    for key, ax in axes.items():
        ax.grid(alpha=0.3)
        ax.margins(y=0.1)
        if key in "ek":
            ax.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--particles", type=int, default=2000, help="particles")
    parser.add_argument("--steps", type=int, default=1000, help="Adam steps")
    parser.add_argument("--samples", type=int, default=2500, help="samples of NUTS a chain, and as many to warm up")
    parser.add_argument("--picture", default="outputs/svgd_numpyro.png", help="where to save it")
    main(**vars(parser.parse_args()))
