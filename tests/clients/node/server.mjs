// The scripted frontend (../scripted.py).
export const root = process.env.TANDEM_CLIENTS_URL;
export const v1 = `${root}/v1`;
export const key = "sesame";
export const MODEL = "tandem-tiny";
export const GREETING = "Hello from the model.";
