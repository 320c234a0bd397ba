// The one tool of these scenarios, and how results are told: one JSON line per scenario.

export const PARAMETERS = {
  type: 'object',
  properties: { city: { type: 'string', description: 'Which city' } },
  required: ['city'],
  additionalProperties: false,
};
export const DESCRIPTION = 'Looks at the sky';
export const HELLO = 'hello there, gateway';
export const ASK = 'please look_up the sky over Paris';
export const TWO = 'compare two cities';

export function lookUp({ city }) {
  return `sunny in ${city}`;
}

/** Runs every scenario for every model; a scenario gives an object, or throws. */
export async function tell(scenarios) {
  const [base, models, wanted] = process.argv.slice(2);
  for (const model of models.split(',')) {
    for (const [scenario, run] of Object.entries(scenarios(base))) {
      if (wanted && !wanted.split(',').includes(scenario)) continue;
      console.log(JSON.stringify({ model, scenario, ...(await attempt(run, model)) }));
    }
  }
}

async function attempt(run, model) {
  try {
    return await run(model);
  } catch (error) {
    return { error: `${error.name}: ${error.message}`, status: error.status ?? error.statusCode ?? null };
  }
}
