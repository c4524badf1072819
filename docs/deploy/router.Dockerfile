FROM python:3.12-slim
ARG KVDIAG=kvdiag[router,otel]
RUN pip install --no-cache-dir ${KVDIAG} \
    && useradd --system --uid 10001 --create-home kvdiag
USER 10001
EXPOSE 8000
ENTRYPOINT ["kvdiag", "router", "--host", "0.0.0.0"]
