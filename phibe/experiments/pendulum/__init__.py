"""The stochastic double pendulum: simulated, rendered, measured; from its states and from its images."""
