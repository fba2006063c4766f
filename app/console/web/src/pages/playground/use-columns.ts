import { useState } from "react";
import { initialModels } from "./models";

export const MOST_COLUMNS = 4;
export const LEAST_COLUMNS = 2;

/**
 * Models that are compared, by their places. At first the one that the address names, and the base. A newer list of
 * models changes none of them: the user may be typing into a field.
 */
export function useColumns(models: readonly string[]) {
  const [columns, setColumns] = useState<readonly string[]>(() => initialModels(models));
  return {
    columns,
    setModel: (index: number, model: string) => setColumns(columns.with(index, model)),
    add: () => setColumns([...columns, models[0] ?? ""]),
    remove: (index: number) => setColumns(columns.toSpliced(index, 1)),
  };
}
