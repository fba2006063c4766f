import { NONE } from "../../lib/format";
import type { Answer } from "./request";

export function useCost(_answer: Answer): string {
  return NONE;
}
