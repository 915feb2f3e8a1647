"""On how few GPUs many LoRA adapters can be served without starving requests.

Adapters of one base model have a rank and a request rate.  A planner spreads them over GPUs and gives each GPU a number
of adapter slots (:mod:`~wavetank.serving.placement.interface`).  A *twin*, the serving simulator with the costs of
:mod:`wavetank.serving.adapters`, says whether a GPU keeps up (:mod:`~wavetank.serving.placement.twin`); the study
``adapter-placement`` counts the GPUs of each planner and serves an hour on every one of them.
"""
