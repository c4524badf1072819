"""The article's experiment in ratio: what reading KV back from decode saves, by prompt length."""
