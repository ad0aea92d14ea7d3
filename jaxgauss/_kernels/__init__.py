"""Radial kernels: functions of u = τ‖x - y‖², their derivatives, and the mixtures of Gaussians that stand for them."""
