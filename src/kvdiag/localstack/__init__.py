"""A real disaggregated vLLM pair on one machine without a GPU, for the demo, tests and experiments."""

from kvdiag.localstack.engine import EngineOptions
from kvdiag.localstack.process import Service, free_port
from kvdiag.localstack.stack import LocalStack, StackOptions, router_service

__all__ = ["EngineOptions", "LocalStack", "Service", "StackOptions", "free_port", "router_service"]
