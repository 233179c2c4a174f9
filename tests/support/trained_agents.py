"""Scores of a trained agent, for the fixture `trial`."""

from starling.tools.evaluate import evaluate_run, load_agent


def greedy_return(episodes=100):
    """A function that returns the mean return of `episodes` evaluation episodes of the trained agent."""

    def measure(result):
        options = {"seed": 0, "which": "newest", "protocol": "as-trained", "warn": lambda line: None}
        return evaluate_run(result.folder, episodes=episodes, **options)["mean"]

    return measure


def load(result):
    """The trained agent of a run: `.model` is its network, `.run_plan.algorithm` the algorithm."""
    return load_agent(result.folder, which="newest", protocol="as-trained", warn=lambda line: None)
