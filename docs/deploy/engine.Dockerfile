# vLLM with kvdiag's connector beside it.
ARG VLLM_VERSION=v0.33.0
FROM vllm/vllm-openai:${VLLM_VERSION}
ARG KVDIAG=kvdiag
RUN pip install --no-cache-dir ${KVDIAG}
