"""The stochastic double pendulum: simulated, rendered, measured; flows of its states and of its images."""
