"""Stochastic Navier–Stokes on the periodic square."""
