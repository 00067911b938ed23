"""How long a run would take on other numbers of devices: a discrete-event simulation of sampling and training.

`lengths`, `fit` and `recorded` say what a response and a phase cost, `schedule` plays the steps, `forecast` sums up.
"""
