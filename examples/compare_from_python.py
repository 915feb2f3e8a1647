"""Compare two routers from Python, and ask the records a question of your own."""

import tempfile

import wavetank

with tempfile.TemporaryDirectory() as folder:
    result = wavetank.compare(
        "llm-routing",
        requests=1000,
        workers=4,
        loads=(0.7,),
        refreshes_s=(),
        systems=["vllm-default", "fewest-kv-tokens", "balance-route"],
        seeds=3,
        on="here",
        out=folder,
    )
    print(result.summary())
    for row in result.rows:
        if row.metric == "imbalance_tokens" and not row.at:
            print(f"{row.system}: {row.median:,.0f} tokens of imbalance ({row.low:,.0f} to {row.high:,.0f})")
    print("report:", result.report().name)
