"""Networks configured one by one: names, sharing, what they take from `net`, and one line for every mistake."""

import subprocess
import sys

import pytest
import yaml

from starling.config.load import from_dict, load, to_dict, to_yaml
from starling.config.nets import NamedNets
from starling.errors import UserError

BOTH = ["nets.policy={}", "nets.value={}"]
RND = "curiosity=[{kind: rnd}]"


def nets(*overrides, preset="ppo-cartpole"):
    return load(preset, list(overrides)).networks


@pytest.mark.parametrize(
    ("preset", "overrides", "message"),
    [
        (
            "ppo-cartpole",
            ["nets={polcy: {}}"],
            "nets.polcy: ppo has no such network; did you mean 'policy'? (use policy, value)",
        ),
        (
            "ppo-cartpole",
            ["nets={policy: {}}"],
            "nets.value is missing: ppo has policy and value, and nets lists them all, e.g. nets.value={share: policy}",
        ),
        (
            "ppo-cartpole",
            ["nets={policy: {share: value}, value: {share: policy}}"],
            "nets.policy.share: policy -> value -> policy is circular; one of them needs a torso of its own",
        ),
        (
            "ppo-cartpole",
            ["nets={policy: {share: policy}, value: {}}"],
            "nets.policy.share: policy -> policy is circular; one of them needs a torso of its own",
        ),
        (
            "ppo-cartpole",
            ["nets={policy: {}, value: {share: polic}}"],
            "nets.value.share: there is no network 'polic'; did you mean 'policy'? (use one of policy, value)",
        ),
        (
            "ppo-cartpole",
            ["nets={policy: {}, value: {share: policy, torso: {hidden: [8]}, inputs: []}}"],
            "nets.value: it shares those of 'policy', so leave out torso, inputs, or else share",
        ),
        ("ppo-cartpole", [*BOTH, "nets.value.torsoo={}"], "unknown key 'nets.value.torsoo'"),
        (
            "ppo-cartpole",
            [*BOTH, "nets.value.torso.hiden=[8]"],
            "unknown key 'nets.value.torso.hiden'; did you mean 'nets.value.torso.hidden'?",
        ),
        ("ppo-cartpole", [*BOTH, "nets.value.optimizer.name=Adm"], "unknown optimizer 'Adm'; did you mean 'Adam'"),
        ("ppo-cartpole", [*BOTH, "nets.value.head.kind=q"], "nets.value.head.kind: 'q' cannot be used"),
        ("ppo-cartpole", ["nets=3"], "nets: must be keys and sections"),
        (
            "ppo-cartpole",
            [*BOTH, "nets.value_rnd={}"],
            "nets.value_rnd: ppo has no such network; did you mean 'value'? (use policy, value)",
        ),
        (
            "ppo-cartpole",
            [*BOTH, "nets.policy_rnd={}", RND],
            "nets.policy_rnd: ppo has no such network; did you mean 'policy' or 'value_rnd'? (use policy, value,",
        ),
        ("dqn-cartpole", ["nets.policy={}"], "nets.policy: dqn has no such network (use q)"),
        ("dqn-cartpole", ["algo.name=ngu", "nets.q={}", "algo.separate_networks=true"], "nets.q_novelty is missing"),
        ("dqn-cartpole", ["algo.name=ngu", "nets={q: {}, q_novelty: {}}"], "nets.q_novelty: ngu has no such network"),
        (
            "sac-pendulum",
            ["nets={policy: {}, critics: {share: policy}}"],
            "nets.critics.share: policy and critics of sac share no layers; leave it out",
        ),
        (
            "sac-pendulum",
            ["nets={policy: {}, critics: {head: {hidden: [8]}}}"],
            "nets.critics.head has no effect: critics' layers are those of nets.critics.torso",
        ),
        (
            "ppo-cartpole",
            ["env.reward_weight=2"],
            "env.reward_weight=2 weighs the env's reward against those of curiosity, but there is none; leave it out",
        ),
    ],
)
def test_every_mistake_is_one_clear_line(preset, overrides, message):
    with pytest.raises(UserError) as caught:
        load(preset, overrides)
    (line,) = str(caught.value).splitlines()
    assert message in line


def test_algorithm_that_names_no_networks_refuses_them():
    settings = {"algo": {"name": "td3:TD3"}, "env": {"id": "toy/match"}, "nets": {"policy": {}}}
    with pytest.raises(UserError, match=r"^nets: td3:TD3 names no networks .*; leave nets out, and use net$"):
        from_dict(settings)


def test_mistakes_are_found_before_torch_is_imported():
    code = (
        "import sys; from starling.cli.precheck import load_checked\n"
        "try: load_checked('ppo-cartpole', ['nets={policy: {share: value}, value: {share: policy}}'])\n"
        "except Exception as error: print(error)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "circular" in done.stdout


def test_net_alone_configures_all_networks():
    net = nets("net.torso.hidden=[7]")
    assert not isinstance(net, NamedNets)
    assert net.settings_of("value") is net
    assert [net.trunk_of(name, "head") for name in ("policy", "value")] == ["head", "head"]  # the preset: shared=false
    assert nets("net.shared=true").trunk_of("policy", "head") is None


def test_what_a_network_leaves_out_is_that_of_net():
    net = nets(
        "net.torso={kind: mlp, hidden: [7], activation: elu}", "net.init=default", "net.inputs=[action]",
        "nets={policy: {core: {kind: gru, size: 5}, init: orthogonal}, value: {torso: {hidden: [3]}, inputs: []}}",
    )  # fmt: skip
    policy, value = net.settings_of("policy"), net.settings_of("value")
    assert (policy.torso.hidden, policy.core.kind, policy.inputs, policy.init) == ([7], "gru", ["action"], "orthogonal")
    assert (value.torso.hidden, value.core.kind, value.inputs, value.init) == ([3], "none", [], "default")
    assert value.torso.activation == "relu"  # a section is taken as a whole
    assert net.recurrent
    assert net.has_memory
    assert not nets(*BOTH).has_memory


def test_override_of_one_key_starts_from_the_section_of_net_or_the_algorithm():
    config = load(
        "ppo-cartpole",
        [*BOTH, "net.torso.activation=elu", "nets.value.torso.hidden=[3]", "nets.value.optimizer.args.lr=0.5"],
    )
    value = config.nets["value"]
    assert (value.torso.hidden, value.torso.activation) == ([3], "elu")
    assert value.optimizer == config.algo.optimizer.model_copy(
        update={"args": {**config.algo.optimizer.args, "lr": 0.5}}
    )
    assert config.nets["policy"].torso is None


def test_shared_trunk_is_that_at_the_end_of_the_chain():
    net = nets(
        RND,
        "nets={policy: {torso: {hidden: [3]}}, value: {share: policy, head: {hidden: [4]}}, value_rnd: {share: value}}",
    )
    assert [net.trunk_of(name, "head") for name in ("policy", "value", "value_rnd")] == ["policy"] * 3
    assert net.settings_of("value_rnd").torso.hidden == [3]
    assert net.settings_of("value").head.hidden == [4]
    assert net.settings_of("value_rnd").head.hidden is None
    assert [net.network_of("value", stream) for stream in ("extrinsic", "rnd")] == ["value", "value_rnd"]


def test_network_that_shares_without_an_optimizer_is_trained_by_that_of_the_other():
    def optimizers(networks):
        config = load("ppo-cartpole", [RND, f"nets={networks}"])
        found = config.networks.optimizers("ppo", config.algo.optimizer)
        return {name: optimizer.args["lr"] for name, optimizer in found.items()}, config.networks

    own = "optimizer: {args: {lr: 0.5}}"
    default = load("ppo-cartpole").algo.optimizer.args["lr"]
    assert optimizers("{policy: {}, value: {}}")[0] == {"policy": default, "value": default}
    assert optimizers("{policy: {}, value: {share: policy}}")[0] == {"policy": default}
    found, net = optimizers(f"{{policy: {{}}, value: {{share: policy, {own}}}, value_rnd: {{share: value}}}}")
    assert found == {"policy": default, "value": 0.5}
    assert net.optimizer_of("value_rnd") == "value"


def test_networks_round_trip_through_yaml():
    config = load("ppo-cartpole", [*BOTH, "nets.value.core.kind=gru", "nets.policy.optimizer.schedule=null"])
    assert from_dict(yaml.safe_load(to_yaml(config))) == config
    assert from_dict(to_dict(config)) == config
    assert from_dict(to_dict(config)).networks == config.networks


def test_file_with_a_base_may_change_one_network(tmp_path):
    base, file = tmp_path / "base.yaml", tmp_path / "mine.yaml"
    base.write_text("{base: ppo-cartpole, nets: {policy: {torso: {hidden: [9]}}, value: {share: policy}}}")
    file.write_text("{base: base.yaml, nets: {value: {head: {hidden: [5]}}}}")
    config = load(str(file))
    assert config.nets["policy"].torso.hidden == [9]
    assert (config.nets["value"].share, config.nets["value"].head.hidden) == ("policy", [5])
