// Prometheus' HTTP API to Grafana's data frames.
import { FieldType, toDataFrame } from '@grafana/data';

export function interpolate(text, variables) {
  return text.replace(/\$\{(\w+)(?::\w+)?\}|\$(\w+)/g, (all, braced, bare) => variables[braced || bare] ?? all);
}

function legend(format, labels) {
  if (format) return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '');
  const { __name__ = '', ...rest } = labels;
  return `${__name__}{${Object.entries(rest).map(([name, value]) => `${name}="${value}"`).join(', ')}}`;
}

async function fetchSeries(target, range, variables) {
  const query = encodeURIComponent(interpolate(target.expr, variables));
  const [from, to] = [range.from / 1000, range.to / 1000];
  const path = target.instant
    ? `query?query=${query}&time=${to}`
    : `query_range?query=${query}&start=${from}&end=${to}&step=${range.step / 1000}`;
  const answer = await (await fetch(`/prom/api/v1/${path}`)).json();
  if (answer.status !== 'success') throw new Error(`${answer.error} in ${target.expr}`);
  return answer.data.result;
}

function tableFrame(target, series) {
  const names = [...new Set(series.flatMap((one) => Object.keys(one.metric)))].sort();
  return toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: series.map((one) => one.value[0] * 1000) },
      ...names.map((name) => ({ name, type: FieldType.string, values: series.map((one) => one.metric[name] ?? '') })),
      { name: `Value #${target.refId}`, type: FieldType.number, values: series.map((one) => +one.value[1]) },
    ],
  });
}

function lineFrame(target, one, range) {
  const points = new Map((one.values ?? [one.value]).map(([time, value]) => [Math.round(time * 1000), +value]));
  // As Grafana does: one value per step, null where there is none, so that gaps stay gaps.
  const times = [];
  if (one.values) for (let time = range.from; time <= range.to; time += range.step) times.push(time);
  else times.push(...points.keys());
  const name = legend(target.legendFormat, one.metric);
  return toDataFrame({
    refId: target.refId,
    name,
    fields: [
      { name: 'Time', type: FieldType.time, config: {}, values: times },
      {
        name: 'Value',
        type: FieldType.number,
        labels: one.metric,
        config: { displayNameFromDS: name },
        values: times.map((time) => points.get(time) ?? null),
      },
    ],
  });
}

export async function runTarget(target, range, variables) {
  const series = await fetchSeries(target, range, variables);
  if (target.format === 'table') return series.length ? [tableFrame(target, series)] : [];
  return series.map((one) => lineFrame(target, one, range));
}
