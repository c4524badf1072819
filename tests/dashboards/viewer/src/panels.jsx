// Panel bodies. Lines, numbers, bars and tables are Grafana's own components; heatmap cells are drawn here.
import 'uplot/dist/uPlot.min.css';

import { getFieldDisplayValues, renderMarkdown } from '@grafana/data';
import { BarGauge, BigValue, Table, TimeSeries, VizRepeater } from '@grafana/ui';
import { useEffect, useRef } from 'react';

function display(panel, frames, theme) {
  return getFieldDisplayValues({
    fieldConfig: panel.fieldConfig,
    reduceOptions: panel.options.reduceOptions,
    replaceVariables: (text) => text,
    theme,
    data: frames,
    sparkline: (panel.options.graphMode ?? 'none') !== 'none',
    timeZone: 'utc',
  });
}

function Stat({ panel, frames, width, height, theme }) {
  const values = display(panel, frames, theme);
  const one = ({ value, width: w, height: h }) => (
    <BigValue
      value={value.display}
      sparkline={value.sparkline}
      colorMode={panel.options.colorMode}
      graphMode={panel.options.graphMode}
      textMode={panel.options.textMode}
      width={w}
      height={h}
      theme={theme}
    />
  );
  return <VizRepeater source={values} getValues={() => values} orientation="auto" width={width} height={height} renderCounter={0} renderValue={one} />;
}

function Bars({ panel, frames, width, height, theme }) {
  const values = display(panel, frames, theme);
  const one = ({ value, width: w, height: h }) => (
    <BarGauge
      value={value.display}
      field={value.field}
      display={value.view?.getFieldDisplayProcessor(value.colIndex)}
      width={w}
      height={h}
      orientation={panel.options.orientation}
      displayMode={panel.options.displayMode}
      text={panel.options.text}
      theme={theme}
      itemSpacing={6}
      lcdCellWidth={12}
    />
  );
  return (
    <VizRepeater source={values} getValues={() => values} orientation={panel.options.orientation} width={width} height={height} renderCounter={0} itemSpacing={6} minVizHeight={16} renderValue={one} />
  );
}

const bound = (frame) => parseFloat(frame.fields[1].labels.le.replace('+Inf', 'Infinity'));

function Heatmap({ frames, width, height }) {
  const canvas = useRef();
  useEffect(() => {
    const sorted = [...frames].sort((a, b) => bound(a) - bound(b));
    const rows = sorted.map((frame) => Array.from(frame.fields[1].values));
    for (let i = rows.length - 1; i > 0; i--) rows[i] = rows[i].map((value, j) => Math.max(0, (value ?? 0) - (rows[i - 1][j] ?? 0)));
    const most = Math.max(...rows.flat());
    const [left, w, h] = [40, (width - 40) / rows[0].length, (height - 16) / rows.length];
    const draw = canvas.current.getContext('2d');
    draw.font = '10px Inter';
    rows.forEach((row, i) => {
      const y = height - 16 - (i + 1) * h;
      draw.fillStyle = '#ccc';
      draw.fillText(sorted[i].fields[1].labels.le, 0, y + h - 1);
      row.forEach((value, j) => {
        if (!value) return;
        const strength = Math.sqrt(value / most);
        draw.fillStyle = `rgba(255,${Math.round(200 - 160 * strength)},60,${0.15 + 0.85 * strength})`;
        draw.fillRect(left + j * w, y, Math.max(1, w - 0.5), h - 1);
      });
    });
  }, [frames]);
  return <canvas ref={canvas} width={width} height={height} />;
}

function Lines({ panel, frames, range, width, height }) {
  return (
    <TimeSeries frames={frames} timeRange={range} timeZone="utc" width={width} height={height} legend={panel.options.legend} structureRev={1}>
      {() => null}
    </TimeSeries>
  );
}

const BODIES = {
  stat: Stat,
  bargauge: Bars,
  timeseries: Lines,
  heatmap: Heatmap,
  table: ({ panel, frames, width, height }) => <Table data={frames[0]} width={width} height={height} initialSortBy={panel.options.sortBy} />,
};

export function Body(props) {
  const { panel, empty, height } = props;
  if (panel.type === 'text') return <div className="markdown-html" dangerouslySetInnerHTML={{ __html: renderMarkdown(panel.options.content) }} />;
  // Grafana's stat panel shows "no value" as its number; the others show it in their middle.
  if (empty) {
    const size = panel.type === 'stat' ? 24 : 14;
    return <div style={{ textAlign: 'center', color: '#9aa0a6', marginTop: height / 2 - size, fontSize: size }}>{panel.fieldConfig.defaults.noValue ?? 'No data'}</div>;
  }
  const Kind = BODIES[panel.type];
  return <Kind {...props} />;
}
