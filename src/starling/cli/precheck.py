"""Checks configurations before torch is imported, which takes long, so that typos are reported at once."""

from __future__ import annotations

from collections.abc import Sequence

from starling.config import atari_ids, load
from starling.config.schema import Config
from starling.config.secrets import has_reference
from starling.envs.catalog import check_id, gymnasium_envs
from starling.errors import UserError
from starling.experiment.run_folder.folder import Vetting


def load_source(
    source: str, overrides: Sequence[str] = (), allow: Sequence[str] | None = None, *, seals: bool = False
) -> Config:
    """Load and check a preset or a file that the user named; see `load_checked`.

    A file is trusted unless it, or one that it derives from, is in a run folder: then it is vetted like that run, and
    refused if it imports a package or joins a cluster that is not allowed.

    Args:
        allow: packages that a run made by somebody else may import.
        seals: True if the configuration becomes a trusted run of the user, including its cluster.
    """
    vetting = Vetting(allow or ())
    config = load_checked(source, overrides, vet=vetting)
    if seals or config.runtime == "ray":
        vetting.check_cluster(overrides)
    return config


def load_checked(
    source: str, overrides: Sequence[str] = (), *, derive: bool = True, vet: load.Vet | None = None
) -> Config:
    """Load `source` with `overrides`; raise one `UserError` with all mistakes that can be found without torch.

    `derive=False`, for the configuration of a run, also refuses the key `base`; for `vet` see `config.load`.
    """
    settings, mistakes = load.merge(source, overrides, derive=derive, vet=vet)
    config, more = load.check(settings.values, settings.origin)
    mistakes += more
    env = settings.values.get("env")
    id = config.env.id if config is not None else env.get("id") if isinstance(env, dict) else None
    try:
        if isinstance(id, str) and id and not has_reference(id) and not _is_answered(id):
            check_id(id)
    except UserError as error:
        mistakes.append(str(error))
    if config is None or mistakes:
        raise UserError(*mistakes)
    _check_actions(config)
    return config


def _is_answered(id: str) -> bool:
    """Return True for an Atari id that the configuration replaces, or refuses with the id to use."""
    try:
        return atari_ids.resolve(id) is not None
    except ValueError:
        return True


def _check_actions(config: Config) -> None:
    """Raise `UserError` if the algorithm does not support the actions of a Gymnasium env; others are checked later."""
    env, algo = config.env, config.algo
    if not algo.actions or env.wrappers or env.args or env.id not in gymnasium_envs():
        return
    import gymnasium

    from starling.envs.catalog import log_mujoco_warnings

    log_mujoco_warnings(gymnasium.spec(env.id))
    try:
        made = gymnasium.make(env.id)
    except Exception:
        return  # the error is reported when the env is made for the run
    made.close()
    algo.check_actions(env.id, made.action_space)
