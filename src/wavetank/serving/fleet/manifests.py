"""A plan as files: TOML for people, JSON for programs, manifests for Kubernetes."""

from __future__ import annotations

import json
import re
from typing import Any

from wavetank.serving.fleet.interface import FleetPlan, FleetProblem

IMAGE = "vllm/vllm-openai:latest"
VERSION = 1


def as_table(plan: FleetPlan, problem: FleetProblem) -> dict[str, Any]:
    """Return a plan as plain values: instances, replicas, and what of the demand they serve."""
    price = {offer.name: offer.usd_per_hour for offer in problem.offers}
    served = plan.served_per_s(problem)
    return {
        "version": VERSION,
        "usd_per_hour": round(plan.usd_per_hour(problem.offers), 4),
        "instances": [
            {"instance": name, "count": count, "usd_per_hour": round(count * price[name], 4)}
            for name, count in sorted(plan.instances.items())
        ],
        "replicas": [
            {
                "model": template.service.model,
                "count": count,
                "how": template.how,
                "groups": [{"device": device, "gpus": group} for device, group in template.nodes],
                "requests_per_s_each": round(template.per_s, 4),
            }
            for template, count in sorted(plan.replicas.items(), key=lambda item: (item[0].service.model, item[0].how))
        ],
        "demand": [
            {
                "model": service.model,
                "requests_per_s": round(rate, 4),
                "served_per_s": round(served[service], 4),
                "slo_ttft_s": service.slo_ttft_s,
                "slo_tpot_s": service.slo_tpot_s,
                "share": service.share,
            }
            for service, rate in problem.demand_per_s.items()
        ],
    }


def to_json(table: dict[str, Any]) -> str:
    """Return a plan's table as JSON."""
    return json.dumps(table, indent=2) + "\n"


def to_toml(table: dict[str, Any]) -> str:
    """Return a plan's table as TOML."""
    lines = [f"{key} = {json.dumps(table[key])}" for key in ("version", "usd_per_hour")]
    for key in ("instances", "replicas", "demand"):
        for row in table[key]:
            lines += ["", f"[[{key}]]", *(f"{name} = {_toml(value)}" for name, value in row.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + " }"
    # Text and numbers are written alike in both languages, but for characters that these names cannot hold.
    return json.dumps(value, ensure_ascii=False)


def to_kubernetes(table: dict[str, Any]) -> str:
    """Return a deployment per model, strategy and group of a plan, as YAML documents.

    A pod takes the GPUs of one group, on nodes with the label ``wavetank/device``.  The cluster's administrator sets
    that label, says where the weights come from (``--model``) and, where prompts and answers have pools of their own,
    how the engines hand over the KV cache.
    """
    documents = []
    for row in table["replicas"]:
        groups: dict[tuple[str, int], int] = {}
        for group in row["groups"]:
            key = group["device"], group["gpus"]
            groups[key] = groups.get(key, 0) + row["count"]
        for (device, gpus), count in groups.items():
            name = _label(f"{row['model']}-{device}-tp{gpus}")
            documents.append(
                f"""# {row["how"]}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
spec:
  replicas: {count}
  selector:
    matchLabels: {{app: {name}}}
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
      nodeSelector:
        wavetank/device: {_label(device)}
      containers:
        - name: engine
          image: {json.dumps(IMAGE)}
          args: ["--model", {json.dumps(row["model"])}, "--tensor-parallel-size", "{gpus}"]
          ports: [{{containerPort: 8000}}]
          resources:
            limits: {{nvidia.com/gpu: {gpus}}}
"""
            )
    return "---\n".join(documents)


def _label(text: str) -> str:
    """Return text as a name that Kubernetes takes: lower-case letters, digits and hyphens, at most 63."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].rstrip("-")
