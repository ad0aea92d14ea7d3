"""Radial kernels: functions of u = τ‖x - y‖², their derivatives, and mixtures of Gaussians that approximate them."""
