import { useState } from "react";
import { initialModels } from "./models";

export const MOST_COLUMNS = 4;
export const LEAST_COLUMNS = 2;

/** Models that are compared, by their places. At first the one that the address names, and the base. */
export function useColumns(models: readonly string[]) {
  const [chosen, setChosen] = useState<readonly string[] | null>(null);
  const columns = chosen ?? initialModels(models);
  return {
    columns,
    setModel: (index: number, model: string) => setChosen(columns.with(index, model)),
    add: () => setChosen([...columns, models[0] ?? ""]),
    remove: (index: number) => setChosen(columns.toSpliced(index, 1)),
  };
}
