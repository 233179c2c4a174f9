"""What can be known to be wrong before torch is imported, which takes longer than a person should wait for a typo."""

from __future__ import annotations

from collections.abc import Sequence

from starling.config import load
from starling.config.schema import Config
from starling.config.secrets import has_reference
from starling.envs.catalog import check_id, gymnasium_envs
from starling.errors import UserError
from starling.experiment.run_folder.folder import of_config


def load_source(
    source: str, overrides: Sequence[str] = (), allow: Sequence[str] | None = None, *, seals: bool = False
) -> Config:
    """`load_checked` for a preset or a file that the user has named.

    A file is the user's own word, unless it lies in a run folder: then it is vetted as that run is, and refused if it
    imports something or joins a cluster that nobody has vouched for.

    Args:
        allow: packages that a run of somebody else's may import.
        seals: True if the configuration becomes one of the user's own, with its cluster.
    """
    run = of_config(source, allow or ())
    config = load_checked(source, overrides, vet=None if run is None else run.vet)
    if run is not None and (seals or config.runtime == "ray"):
        run.check_cluster(overrides)
    return config


def load_checked(
    source: str, overrides: Sequence[str] = (), *, derive: bool = True, vet: load.Vet | None = None
) -> Config:
    """The configuration that `source` and `overrides` give; refuses every mistake that can be found without torch.

    `derive=False`, for the configuration of a run, also refuses the key `base`; `vet` is that of `config.load`.
    """
    settings, mistakes = load.merge(source, overrides, derive=derive, vet=vet)
    config, more = load.check(settings.values, settings.origin)
    mistakes += more
    env = settings.values.get("env")
    id = config.env.id if config is not None else env.get("id") if isinstance(env, dict) else None
    try:
        if isinstance(id, str) and id and not has_reference(id):
            check_id(id)
    except UserError as error:
        mistakes.append(str(error))
    if config is None or mistakes:
        raise UserError(*mistakes)
    _check_actions(config)
    return config


def _check_actions(config: Config) -> None:
    """Refuse an env of Gymnasium's whose actions the algorithm cannot take; others are made later."""
    env, algo = config.env, config.algo
    if not algo.actions or env.wrappers or env.args or env.id not in gymnasium_envs():
        return
    import gymnasium

    from starling.envs.mujoco import log_warnings

    log_warnings(gymnasium.spec(env.id))
    try:
        made = gymnasium.make(env.id)
    except Exception:
        return  # the reason is given where the env is made for good
    made.close()
    algo.check_actions(env.id, made.action_space)
