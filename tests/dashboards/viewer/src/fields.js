// Grafana's field-config pipeline: which options exist, and which transformations.
import * as data from '@grafana/data';

const STANDARD = {
  unit: data.unitOverrideProcessor,
  min: data.numberOverrideProcessor,
  max: data.numberOverrideProcessor,
  decimals: data.numberOverrideProcessor,
  displayName: data.displayNameOverrideProcessor,
  noValue: data.stringOverrideProcessor,
  color: data.identityOverrideProcessor,
  thresholds: data.thresholdsOverrideProcessor,
  mappings: data.valueMappingsOverrideProcessor,
  links: data.dataLinksOverrideProcessor,
};
const CUSTOM =
  'lineWidth fillOpacity drawStyle lineInterpolation showPoints pointSize stacking axisPlacement axisLabel thresholdsStyle hideFrom spanNulls gradientMode align cellOptions width inspect scaleDistribution'.split(
    ' '
  );

const option = (id, path, process, isCustom) => ({
  id,
  path,
  isCustom,
  process,
  name: path,
  shouldApply: () => true,
  override: () => null,
  editor: () => null,
});

export const registry = new data.FieldConfigOptionsRegistry(() => [
  ...Object.entries(STANDARD).map(([name, process]) => option(name, name, process, false)),
  ...CUSTOM.map((name) => option(`custom.${name}`, name, data.identityOverrideProcessor, true)),
]);

data.standardTransformersRegistry.setInit(() =>
  ['mergeTransformer', 'organizeFieldsTransformer', 'renameFieldsTransformer', 'filterFieldsByNameTransformer', 'orderFieldsTransformer', 'noopTransformer', 'sortByTransformer']
    .map((name) => data.standardTransformers[name])
    .map((one) => ({ id: one.id, name: one.name, transformation: async () => one, editor: () => null, aliasIds: [] }))
);
