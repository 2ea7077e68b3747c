// The question before every change: what it does, how many nodes it hits, and the command that does the same.
export type Question = { title: string; text: string; hits: string; command: string; button: string; act: () => Promise<unknown> };
export const asked = $state<{ question: Question | null }>({ question: null });
export const ask = (question: Question) => (asked.question = question);
