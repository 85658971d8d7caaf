// Charts of series over steps, by uPlot.
import {el} from './dom.js';

const COLORS = ['--accent', '--good', '--bad', '--wait', '--violet', '--teal', '--pink', '--dim'];

const SHORT = new Intl.NumberFormat('en', {notation: 'compact', maximumSignificantDigits: 4});

// A chart of one or several series, whose labels are their names, along steps or what else is named. `draw` takes the
// steps and a list of values for each series; what is no number leaves a gap. The last steps and values are in the box's
// dataset, and all of them in its `data`, for readers that see no canvas.
export function chart(title, labels, along = 'step') {
  const box = el('div', {class: 'chart', role: 'img', 'aria-label': title, 'data-title': title});
  let plot;
  return {box, draw(steps, ...series) {
    const data = [steps, ...series.map((values) => values.map((v) => typeof v === 'number' ? v : null))];
    box.data = data;
    box.dataset.points = steps.length;
    box.dataset.step = steps.at(-1) ?? 0;
    box.dataset.last = JSON.stringify(data.slice(1).map((values) => values.findLast((v) => v !== null) ?? null));
    if (plot) return plot.setData(data);
    const style = getComputedStyle(document.documentElement);
    const axis = {stroke: getComputedStyle(document.body).color, grid: {stroke: '#8883'}};
    const size = () => ({width: Math.min(800, box.clientWidth || 360), height: 220});
    const short = {...axis, values: (_, ticks) => ticks.map((v) => SHORT.format(v))};
    plot = new uPlot({title, ...size(), scales: {x: {time: false}}, axes: [axis, short],
      series: [{label: along}, ...labels.map((label, i) => ({label, stroke: style.getPropertyValue(COLORS[i % COLORS.length]), spanGaps: true}))]},
    data, box);
    new ResizeObserver(() => plot.setSize(size())).observe(box);
  }};
}
