"""A discrete-event simulation of sampling and training, to predict how long a run takes on other numbers of devices.

`lengths`, `fit` and `recorded` give the costs of responses and phases, `schedule` plays the steps, `forecast` sums up.
"""
