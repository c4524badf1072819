# vLLM, NIXL in it, with kvdiag's connector beside it.
# Build from the project's root: docker build -f docs/deploy/engine.Dockerfile -t kvdiag-engine:0.32.0 .
# The newest vLLM on which the connector's end-to-end tests ran; 0.33 was compared with the sources only.
ARG VLLM_VERSION=v0.32.0
FROM docker.io/vllm/vllm-openai:${VLLM_VERSION}
WORKDIR /opt/kvdiag
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY connector connector
COPY dashboards dashboards
COPY exporters exporters
COPY router router
COPY runbooks runbooks
RUN python3 -m pip install --no-cache-dir .
