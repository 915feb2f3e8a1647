"""Reinforcement learning of agents: whose GPUs compute the rollouts, and how new weights get there.

A step of reinforcement learning lets an agent try many tasks, turn by turn, and learns from what came out.  Most of its
time goes into these trajectories, a few of which last much longer than the others; GPUs for the peak are idle in the
tail.  GPUs that serve users are idle at other times.  Study ``rl-rollouts`` asks what can be had of them without a
single user who waits too long (:mod:`~wavetank.training.rollouts.rose`), study ``weight-sync`` how small new weights
become (:mod:`~wavetank.training.rollouts.delta`), since every serving GPU needs them in every step;
:mod:`~wavetank.training.rollouts.shards` plans who sends which part to whom when both sides cut a model differently,
and :mod:`~wavetank.training.rollouts.exchange` does it between real processes.
"""
