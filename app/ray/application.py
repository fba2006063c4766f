"""Serve application of the engine replicas."""

import re
import secrets
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingPolicy, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import DeploymentStatus, LoggingConfig, ReplicaState

from app.domain.errors import EngineUnavailable
from app.engine.vllm.requirements import is_cpu_build
from app.ray.replica import START_FAILED, EngineReplica
from app.ray.request_router import NodeRouter
from app.ray.scaling import wanted_replicas
from app.ray.transport import Deployed, Phase
from app.settings import RaySettings, Settings
from app.support.release import RELEASE

#: Name of the application, of its deployment and of the namespace of both.
NAME = "tenora"
DEPLOYMENT = "engine"

#: Ray's queue must never form: it is first in, first out over all tenants. All waiting is in the engine's queue.
_MAX_ONGOING = 1_000_000
_HEALTH_S = 2.0
#: Seconds after which a new replica's node is known to the gateways, and the limit of that question.
_STATS_S, _STATS_TIMEOUT_S = 1.0, 5.0
_REASON_CHARACTERS = 600
_HEALTH_TIMEOUT_S = 30.0


def deploy(settings: Settings, replica: type[Any] = EngineReplica) -> "DeploymentHandle[Any]":
    """Deploy the replicas, or change a running deployment, and return once they answer. Blocks.

    Replicas of another release, or with other resources, are replaced one after the other. All other changes leave
    running replicas alone. With a minimum of 0, no replica is started.

    Args:
        replica: class of the actors.

    Raises:
        EngineUnavailable: the replicas do not start.
    """
    serve.start(proxy_location="Disabled", logging_config=_quiet())
    # With the same version, Ray does not try again after a failure.
    version = f"{RELEASE}-{secrets.token_hex(4)}" if deployed().phase is Phase.FAILED else RELEASE
    try:
        return serve.run(application(settings, replica, version=version), name=NAME, route_prefix=None)
    except RuntimeError as error:
        raise EngineUnavailable(_reason(str(error))) from None


def application(
    settings: Settings, replica: type[Any] = EngineReplica, *, version: str = RELEASE
) -> "serve.Application":
    """Return the application of the replicas, for :func:`deploy` and for a configuration of Serve.

    Args:
        version: a deployment of another version replaces all replicas.
    """
    deployment = serve.deployment(replica, name=DEPLOYMENT, **_options(settings))
    # Without a version, Ray replaces all replicas at each deployment.
    deployment._version = version
    return deployment.bind()


def build(arguments: dict[str, Any]) -> "serve.Application":
    """Build the application from a configuration of Serve, such as a RayService's, in the environment of a replica.

    Args:
        arguments: settings of the fleet that replace those of the environment, such as ``max_replicas``.

    Raises:
        ValueError: an argument is no setting of the fleet, or not valid.
    """
    return application(with_arguments(Settings(), arguments))


def with_arguments(settings: Settings, arguments: dict[str, Any]) -> Settings:
    """Return settings whose fleet has these arguments.

    Raises:
        ValueError: an argument is no setting of the fleet, or not valid.
    """
    ray = RaySettings.model_validate(settings.ray.model_dump() | arguments)
    return settings.model_copy(update={"ray": ray})


def running_handle() -> "DeploymentHandle[Any] | None":
    """Return the handle of the running deployment; None if there is none. Blocks."""
    try:
        return serve.get_deployment_handle(DEPLOYMENT, app_name=NAME)
    except (RayServeException, KeyError):
        return None


def deployed() -> Deployed:
    """Return the state of the deployment. Blocks.

    Raises:
        RayError: the cluster does not answer.
    """
    application = serve.status().applications.get(NAME)
    overview = application.deployments.get(DEPLOYMENT) if application else None
    if overview is None:
        return Deployed(Phase.ABSENT)
    ended = {ReplicaState.STOPPING, ReplicaState.STOPPED}
    if any(number and state not in ended for state, number in overview.replica_states.items()):
        return Deployed(Phase.STARTING, _reason(overview.message))
    if overview.status in {DeploymentStatus.UNHEALTHY, DeploymentStatus.DEPLOY_FAILED}:
        return Deployed(Phase.FAILED, _reason(overview.message))
    asleep = overview.status in {DeploymentStatus.HEALTHY, DeploymentStatus.DOWNSCALING}
    return Deployed(Phase.ASLEEP if asleep else Phase.STARTING)


def remove() -> None:
    """End the replicas: they answer their last requests and stop. Blocks."""
    serve.delete(NAME)


def _reason(message: str) -> str:
    """Return the replica's own words, which Ray puts in the middle of a traceback."""
    found = re.search(re.escape(START_FAILED) + "[^\n]*", message)
    return found[0] if found else " ".join(message.split())[:_REASON_CHARACTERS]


def _options(settings: Settings) -> dict[str, Any]:
    ray = settings.ray
    gpus = ray.gpus
    if gpus is None:
        gpus = 0 if is_cpu_build() else settings.engine.tensor_parallel_size
    options: dict[str, Any] = {
        "max_ongoing_requests": _MAX_ONGOING,
        "max_queued_requests": -1,
        "ray_actor_options": {"num_cpus": ray.cpus, "num_gpus": gpus},
        "health_check_period_s": _HEALTH_S,
        "health_check_timeout_s": _HEALTH_TIMEOUT_S,
        "graceful_shutdown_timeout_s": settings.grace_seconds,
        "logging_config": _quiet(),
        "request_router_config": RequestRouterConfig(
            request_router_class=NodeRouter,
            request_routing_stats_period_s=_STATS_S,
            request_routing_stats_timeout_s=_STATS_TIMEOUT_S,
        ),
    }
    if ray.min_replicas == ray.max_replicas:
        return options | {"num_replicas": ray.min_replicas}
    scaling = {
        "min_replicas": ray.min_replicas,
        "max_replicas": ray.max_replicas,
        "target_ongoing_requests": ray.target_requests,
        "upscale_delay_s": ray.upscale_delay_s,
        "downscale_delay_s": ray.downscale_delay_s,
        "policy": AutoscalingPolicy(policy_function=wanted_replicas),
    }
    return options | {"autoscaling_config": scaling}


def _quiet() -> LoggingConfig:
    return LoggingConfig(enable_access_log=False, log_level="WARNING")
