"""The reward `judge`: another language model rates responses.

A judge only waits, so it runs in the training process, on one thread with an event loop: its limits (requests in
flight, requests and tokens a minute) then hold for the whole run. The scorer calls `judges.py`. Below it are `forms.py`
and `pairwise.py` (from verdicts to scores), `asking.py` (one verdict: cache, repair), `client.py` (HTTP) and
`limits.py`, and `prompts.py` and `verdicts.py` (writing prompts and reading answers). No torch here.
"""
