"""Bayesian logistic regression by SVGD, beside maximum a posteriori and MCMC: `python examples/svgd_posterior.py`."""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from tqdm import trange

from jaxgauss import ksd_squared, median_tau, svgd_direction

PRIOR = 1.0  # variance of the Gaussian prior of every weight, the intercept's as well


def load_data():
    """Standardized features with a column of ones, and labels ±1: training and held out."""
    split = train_test_split(*load_breast_cancer(return_X_y=True), test_size=0.3, random_state=0)
    scaler = StandardScaler().fit(split[0])
    inputs = [jnp.asarray(np.c_[scaler.transform(x), np.ones(len(x))], jnp.float32) for x in split[:2]]
    return *inputs, *(2 * jnp.asarray(labels, jnp.float32) - 1 for labels in split[2:])


def predict(weights, inputs):
    """The posterior predictive probability of the label +1, from weights (N, D)."""
    return jax.nn.sigmoid(inputs @ weights.T).mean(1)


def quality(weights, inputs, labels):
    """Accuracy and mean log-likelihood of the posterior predictive."""
    p = predict(weights, inputs)
    right = jnp.where(labels > 0, p, 1 - p)
    return float((right > 0.5).mean()), float(jnp.log(right).mean())


def hamiltonian_chains(log_density, mode, rng_key, num, chains=100, step_size=0.3, leapfrogs=8):
    """Hamiltonian Monte Carlo in the coordinates of the Laplace approximation: samples (num, chains, D)."""
    factor = jnp.linalg.cholesky(jnp.linalg.inv(-jax.hessian(log_density)(mode)))
    value_and_score = jax.vmap(jax.value_and_grad(lambda z: log_density(mode + factor @ z)))

    def leapfrog(_, carry):
        z, p = carry
        p = p + step_size / 2 * value_and_score(z)[1]
        z = z + step_size * p
        return z, p + step_size / 2 * value_and_score(z)[1]

    def step(z, rng_key):
        keys = jax.random.split(rng_key)
        p = jax.random.normal(keys[0], z.shape)
        new_z, new_p = jax.lax.fori_loop(0, leapfrogs, leapfrog, (z, p))
        gain = value_and_score(new_z)[0] - value_and_score(z)[0] + (p**2 - new_p**2).sum(1) / 2
        z = jnp.where((jnp.log(jax.random.uniform(keys[1], gain.shape)) < gain)[:, None], new_z, z)
        return z, mode + z @ factor.T

    start = jax.random.normal(rng_key, (chains, len(mode)))
    return jax.jit(lambda keys: jax.lax.scan(step, start, keys)[1])(jax.random.split(rng_key, num + 100))[100:]


def main(particles=10_000, steps=300, samples=1000, picture="outputs/svgd_posterior.png"):
    """Move the particles, compare with MAP and MCMC, and draw weights, convergence and predictions."""
    inputs, test_inputs, labels, test_labels = load_data()

    def log_posterior(w):
        return jax.nn.log_sigmoid(labels * (inputs @ w)).sum() - w @ w / (2 * PRIOR)

    scores = jax.vmap(jax.grad(log_posterior))
    model = LogisticRegression(C=PRIOR, fit_intercept=False, max_iter=1000).fit(inputs, labels)
    mode = jnp.asarray(model.coef_[0], jnp.float32)
    print(f"Hamiltonian Monte Carlo: {samples} samples of each of 100 chains")
    chains = hamiltonian_chains(log_posterior, mode, jax.random.key(2), samples)
    mcmc = chains[::5].reshape(-1, len(mode))  # every fifth: they are correlated
    mean, sd = chains.mean((0, 1)), chains.std((0, 1))

    x = jnp.sqrt(PRIOR) * jax.random.normal(jax.random.key(0), (particles, len(mode)))
    optimizer = optax.adam(optax.cosine_decay_schedule(0.2, steps))
    state = optimizer.init(x)
    ksd_tau = median_tau(mcmc)

    @jax.jit
    def step(x, state, rng_key):
        tau = 2 * jnp.log(particles) * median_tau(x, rng_key=rng_key, max_points=300)  # Liu & Wang's rule
        direction = svgd_direction(x, scores(x), tau)
        updates, state = optimizer.update(-direction, state)  # minus: Optax descends, particles go up the density
        return optax.apply_updates(x, updates), state

    @jax.jit
    def discrepancy(x):
        return ksd_squared(x, scores(x), ksd_tau, estimator="unbiased")

    history = []
    for i in (bar := trange(steps, unit="step", mininterval=0.5)):
        x, state = step(x, state, jax.random.fold_in(jax.random.key(1), i))
        if i % 10 == 9 or i == steps - 1:
            history.append((i + 1, float(discrepancy(x[:2000])), float((x.std(0) / sd).mean())))
            bar.set_postfix_str(f"KSD² {history[-1][1]:.2g}")

    print("held out:   accuracy   mean log-likelihood")
    for name, weights in (("MAP", mode[None]), ("MCMC", mcmc), ("SVGD", x)):
        print("{:<11s} {:>8.4f}   {:>19.4f}".format(name, *quality(weights, test_inputs, test_labels)))
    shift, ratio = jnp.abs(x.mean(0) - mean) / sd, x.std(0) / sd
    halves = jnp.abs(chains[:, ::2].mean((0, 1)) - chains[:, 1::2].mean((0, 1))) / sd
    print(f"means, SVGD - MCMC: {shift.mean():.3f} posterior sd on average, {shift.max():.3f} at most")
    print(f"       between halves of the chains: {halves.max():.3f} at most")
    print(f"sds, SVGD / MCMC: {ratio.mean():.3f} on average, {ratio.min():.3f} to {ratio.max():.3f}")
    print("SVGD is known to underestimate variances in many dimensions: do not take its sds for error bars.")
    draw(x, mcmc, mode, history, test_inputs, test_labels, Path(picture))
    return shift, ratio, history


def draw(x, mcmc, mode, history, inputs, labels, path):
    """Weights by SVGD and MCMC, convergence, and predictions on held-out data."""
    fig, axes = plt.subplot_mosaic("wkp;wsp", figsize=(14, 4.6), width_ratios=[1.5, 1, 1], layout="constrained")
    order = jnp.argsort(mcmc.mean(0))
    for points, name, offset, color in ((mcmc, "MCMC", -0.18, "0.45"), (x, "SVGD", 0.18, "C0")):
        at = np.arange(len(order)) + offset
        style = {"fmt": "o", "ms": 3, "lw": 1.4, "color": color, "label": name}
        axes["w"].errorbar(at, points.mean(0)[order], points.std(0)[order], **style)
    axes["w"].set(title="weights: posterior mean ± sd", xlabel="weight, in the order of its mean", ylabel="weight")
    at, ksd, ratios = zip(*history, strict=True)
    axes["k"].semilogy(at, ksd, color="C0")
    axes["k"].set(title="convergence", ylabel="KSD² of 2000 particles\n(unbiased)")
    axes["k"].tick_params(labelbottom=False)
    axes["s"].plot(at, ratios, color="C0", label="mean over the weights")
    axes["s"].axhline(1, color="0.45", lw=1, ls="--", label="as MCMC")
    axes["s"].set(xlabel="step", ylabel="sd, SVGD / MCMC")
    axes["s"].sharex(axes["k"])
    by_mcmc, by_map, by_svgd = (jax.scipy.special.logit(predict(w, inputs)) for w in (mcmc, mode[None], x))
    for other, name, marker, color in ((by_map, "MAP", "x", "C3"), (by_svgd, "SVGD", "o", "C0")):
        axes["p"].scatter(by_mcmc, other, s=14, lw=0.8, marker=marker, color=color, alpha=0.7, label=name)
    axes["p"].axline((0, 0), slope=1, color="0.6", lw=0.8, zorder=0)
    axes["p"].set(title="held-out predictions", xlabel="log-odds by MCMC", ylabel="log-odds")
    for key, ax in axes.items():
        ax.grid(alpha=0.3)
        if key != "k":
            ax.legend(loc="upper right" if key == "s" else "upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--particles", type=int, default=10_000, help="particles")
    parser.add_argument("--steps", type=int, default=300, help="Adam steps")
    parser.add_argument("--samples", type=int, default=1000, help="MCMC samples a chain, of 100 chains")
    parser.add_argument("--picture", default="outputs/svgd_posterior.png", help="where to save it")
    main(**vars(parser.parse_args()))
